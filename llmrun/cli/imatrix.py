"""`llmrun imatrix`: which weights of a model matter, by what goes through them."""

from pathlib import Path
from typing import Annotated

import typer

from llmrun.cli.options import OutputOptions, setting, with_groups
from llmrun.cli.perplexity import layers_on_gpu, stopping
from llmrun.cli.terminal.completion import any_model
from llmrun.errors import UsageError


@with_groups
def command(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", show_default=False, autocompletion=any_model)
    ] = None,
    *,
    file: Annotated[
        str | None, typer.Option("-f", "--file", help="The text; without it, one the model writes.")
    ] = None,
    out: Annotated[str, typer.Option("-o", "--output", help="The file to write.")] = "imatrix.gguf",
    merge: Annotated[
        list[str] | None, typer.Option("--merge", help="Add up these matrices instead; repeatable.", metavar="FILE")
    ] = None,
    ctx: Annotated[int, typer.Option("-c", "--ctx", help="Tokens a chunk.", min=16)] = 512,
    chunks: Annotated[int | None, typer.Option("--chunks", help="At most so many chunks.", min=1)] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the text that the model writes.", min=0)] = 1,
    special: Annotated[bool, typer.Option("--special", help="Control tokens in the text are read as such.")] = False,
    threads: Annotated[int | None, setting("-t --threads", "CPU threads.", min=1)] = None,
    gpu_layers: Annotated[str | None, setting("-g --gpu-layers --n-gpu-layers", "Layers on the GPU.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Start anew where the file exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    output: OutputOptions,
) -> None:
    """Make an importance matrix, in the form that llama.cpp's programs read. A partial file of the same text is
    gone on from.

    llmrun imatrix smollm2 -f text.txt -o smollm2.imatrix.gguf

    llmrun imatrix --merge a.gguf --merge b.gguf -o both.gguf
    """
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.prepare import quantizing

    target, report = Path(out).expanduser(), StderrReport()
    if merge:
        result = quantizing.merge_matrices([Path(name).expanduser() for name in merge], target, force=force)
    elif model is None:
        raise UsageError("there is no model", "llmrun imatrix MODEL [-f TEXT] [-o FILE]")
    else:
        with stopping() as stop:
            result = quantizing.make_matrix(
                model,
                file,
                target,
                report=report,
                threads=threads,
                gpu_layers=layers_on_gpu(gpu_layers),
                n_ctx=ctx,
                n_chunks=chunks,
                seed=seed,
                special=special,
                force=force,
                stop=stop,
            )
    if json:
        from llmrun.cli.output import print_json

        print_json(result)
        return
    print(f"{result.path}: {result.n_tensors} tensors, {result.n_chunks} chunks, {result.seconds:.1f} s")
