"""`llmrun bench`: how fast a model is here."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from llmrun.cli.options import OutputOptions, setting, with_groups
from llmrun.cli.terminal.completion import any_model
from llmrun.paths import expand

if TYPE_CHECKING:
    from llmrun.bench.grid import Grid

LIST = "LIST"


class GridOptions(NamedTuple):
    """What is tested: every combination of these lists. Short flags are llama-bench's."""

    n_prompt: Annotated[str | None, typer.Option("-p", "--n-prompt", help="Prompt lengths (512).", metavar=LIST)] = (
        None
    )
    n_gen: Annotated[str, typer.Option("-n", "--n-gen", help="Tokens to generate.", metavar=LIST)] = "128"
    pg: Annotated[
        list[str] | None,
        typer.Option("-pg", "--pg", help="A prompt and an answer in one; repeatable.", metavar="P,N"),
    ] = None
    depth: Annotated[str, typer.Option("-d", "--depth", help="Tokens before the test.", metavar=LIST)] = "0"
    repeats: Annotated[str, typer.Option("-r", "--repeats", "--repetitions", help="Repeats.", metavar=LIST)] = "5"
    threads: Annotated[str | None, setting("-t --threads", "CPU threads.", metavar=LIST)] = None
    batch: Annotated[str, setting("-b --batch --batch-size", "Most tokens of one step.", metavar=LIST)] = "2048"
    ubatch: Annotated[str, setting("-ub --ubatch --ubatch-size", "Tokens of one pass.", metavar=LIST)] = "512"
    gpu_layers: Annotated[
        str, setting("-g --gpu-layers --n-gpu-layers", "Layers on the GPU.", metavar="auto|all|LIST")
    ] = "auto"
    kv_type: Annotated[str, setting("--kv-type", "KV cache types; K/V for two.", metavar=LIST)] = "f16"
    cache_type_k: Annotated[str | None, typer.Option("-ctk", "--cache-type-k", help="Of the keys.", metavar=LIST)] = (
        None
    )
    cache_type_v: Annotated[
        str | None, typer.Option("-ctv", "--cache-type-v", help="Of the values.", metavar=LIST)
    ] = None
    flash_attn: Annotated[str, setting("-fa --flash-attn", "Flash attention.", metavar="auto|on|off,...")] = "auto"

    def grid(self) -> "Grid":
        """Raises UsageError."""
        from llmrun.bench import grid

        return grid.Grid(
            n_prompt=grid.parse_counts(self.n_prompt, "-p") if self.n_prompt is not None else (512,),
            n_gen=grid.parse_counts(self.n_gen, "-n"),
            pairs=grid.parse_pairs(self.pg or ()),
            depth=grid.parse_counts(self.depth, "--depth"),
            repeats=grid.parse_counts(self.repeats, "--repeats", 1),
            threads=grid.parse_counts(self.threads, "--threads", 1) if self.threads else (),
            batch=grid.parse_counts(self.batch, "--batch", 1),
            ubatch=grid.parse_counts(self.ubatch, "--ubatch", 1),
            gpu_layers=grid.parse_layers(self.gpu_layers),
            kv_type=grid.with_halves(
                grid.parse_kv_types(self.kv_type),
                grid.parse_cache_types(self.cache_type_k, "-ctk") if self.cache_type_k else (),
                grid.parse_cache_types(self.cache_type_v, "-ctv") if self.cache_type_v else (),
            ),
            flash_attn=grid.parse_flash_attn(self.flash_attn),
        )


class KeepOptions(NamedTuple):
    """What becomes of the results."""

    save: Annotated[str | None, typer.Option("--save", help="Keep the results under a name.", metavar="NAME")] = None
    compare: Annotated[str | None, typer.Option("--compare", help="With kept results.", metavar="NAME")] = None
    force: Annotated[bool, typer.Option("--force", help="With --save and --plot: replace what is there.")] = False
    compare_anyway: Annotated[
        bool, typer.Option("--compare-anyway", help="Though the machine or the model file is another.")
    ] = False
    plot: Annotated[
        str | None, typer.Option("--plot", help="Draw the results (needs matplotlib).", metavar="FILE.png|svg")
    ] = None


@with_groups
def command(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", show_default=False, autocompletion=any_model)
    ] = None,
    *,
    model: Annotated[list[str] | None, typer.Option("-m", "--model", help="A model; repeatable.")] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Time to first token and between tokens, as `run` answers.")
    ] = False,
    concurrency: Annotated[
        str | None, typer.Option("--concurrency", help="Requests in flight at once.", metavar=LIST)
    ] = None,
    shared_prefix: Annotated[
        int, typer.Option("--shared-prefix", help="With --concurrency: tokens all prompts begin with.", min=0)
    ] = 0,
    ab: Annotated[
        tuple[str, str] | None,
        typer.Option("--ab", help="Two settings in turn, and their ratio.", metavar="'FLAGS' 'FLAGS'"),
    ] = None,
    drift: Annotated[bool, typer.Option("--drift", help="What each setting does to the answers.")] = False,
    no_mmap: Annotated[bool, setting("--no-mmap", "Read the weights instead of mapping the file.")] = False,
    format: Annotated[
        str, typer.Option("-o", "--format", "--output", help="Of the results.", metavar="table|md|json|jsonl|csv")
    ] = "table",
    json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    lists: GridOptions,
    keep: KeepOptions,
    output: OutputOptions,
) -> None:
    """Measure prefill (pp) and decode (tg) speed as llama-bench does, and more.

    Lists are 1,2,4 or ranges: 1-4, 16-64+16, 128-1024*2. Every combination is run.

    llmrun bench smollm2 -p 128-512*2 -n 64 -t 1,2

    llmrun bench smollm2 --latency --concurrency 1,2,4,8

    llmrun bench smollm2 --ab "-fa on" "-fa off"
    """
    from llmrun.bench.grid import parse_counts
    from llmrun.cli.benching.flow import Options, run_bench

    options = Options(
        references=(*(model or ()), *(models or ())),
        grid=lists.grid(),
        n_prompt_given=lists.n_prompt is not None,
        latency=latency,
        concurrency=parse_counts(concurrency, "--concurrency", 1) if concurrency else (),
        shared_prefix=shared_prefix,
        save=keep.save,
        compare=keep.compare,
        force=keep.force,
        plot=expand(keep.plot) if keep.plot else None,
        compare_anyway=keep.compare_anyway,
        format="json" if json else format.lower(),
        mmap=not no_mmap,
        quiet=output.quiet,
    )
    if drift:
        from llmrun.cli.benching.drift import run_drifts

        raise typer.Exit(run_drifts(options))
    if ab is not None:
        from llmrun.cli.benching.versus import run_ab

        raise typer.Exit(run_ab(options, ab))
    raise typer.Exit(run_bench(options))
