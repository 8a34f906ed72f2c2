"""`llmrun report`: several files of one model by size, quality and speed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import OutputOptions, setting, with_groups
from llmrun.cli.perplexity import layers_on_gpu, stopping
from llmrun.cli.terminal.completion import any_model
from llmrun.report import size_text

if TYPE_CHECKING:
    from llmrun.evals.comparison import Comparison, Row


@with_groups
def command(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", show_default=False, autocompletion=any_model)
    ] = None,
    *,
    reference: Annotated[
        str | None, typer.Option("--reference", "--base", help="The best file of the model, to compare with.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", help="The text; without it, one the model writes.")
    ] = None,
    ctx: Annotated[int, typer.Option("-c", "--ctx", help="Tokens a chunk.")] = 512,
    chunks: Annotated[int | None, typer.Option("--chunks", help="At most so many chunks.", min=1)] = None,
    threads: Annotated[int | None, setting("-t --threads", "CPU threads.", min=1)] = None,
    gpu_layers: Annotated[str | None, setting("-g --gpu-layers --n-gpu-layers", "Layers on the GPU.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Write a picture, size against quality.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    output: OutputOptions,
) -> None:
    """One table for several files of a model. A star marks those that no other beats in both size and quality.

    llmrun report q4.gguf q5.gguf q6.gguf --reference f16.gguf -f text.txt
    """
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.prepare.comparing import compare

    if plot is not None:
        check_plot()
    report = StderrReport()
    with stopping() as stop:
        result = compare(
            models or [],
            reference,
            file,
            report=report,
            threads=threads,
            stop=stop,
            n_ctx=ctx,
            n_chunks=chunks,
            gpu_layers=layers_on_gpu(gpu_layers),
        )
    if plot is not None:
        from llmrun.evals.plot import draw

        draw(result, Path(plot).expanduser())
    if json:
        from llmrun.cli.output import print_json

        print_json(result)
    else:
        print_comparison(result)


def check_plot() -> None:
    """Raises UsageError before anything slow is done where the picture cannot be drawn."""
    from importlib.util import find_spec

    from llmrun.errors import UsageError

    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed", 'pip install "llmrun[plot]"')


def print_comparison(result: "Comparison") -> None:
    from llmrun.cli.output import print_table

    quality = ("ppl", "ppl ratio", "kld", "kld 99%", "same top") if result.reference else ("ppl", "±")
    columns = ("", "model", "type", "size", "bits", *quality, "prefill tok/s", "decode tok/s")
    rows = [
        (
            "*" if row.best else "", Path(row.name).name, row.quant, size_text(row.size_bytes),
            f"{row.bits_per_weight:.2f}", *_quality(row), f"{row.prefill_tps:.0f}", f"{row.decode_tps:.0f}",
        )
        for row in result.rows
    ]  # fmt: skip
    print_table(columns, rows, right=[column for column in columns if column not in ("", "model", "type")])
    compared = f", compared with {result.reference}" if result.reference else ""
    print(f"{result.n_chunks} chunks of {result.n_ctx} tokens of {result.text}{compared}; * beaten by none")


def _quality(row: "Row") -> tuple[str, ...]:
    if row.divergence is None:
        return f"{row.perplexity:.4f}", f"{row.perplexity_error:.4f}"
    d = row.divergence
    return (
        f"{row.perplexity:.4f}", f"{d.ratio.value:.4f}", f"{d.kld_mean.value:.5f}", f"{d.kld_p99:.4f}",
        f"{100 * d.same_top.value:.1f} %",
    )  # fmt: skip
