"""`llmrun convert`: a Hugging Face checkpoint to GGUF."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import OutputOptions, with_groups
from llmrun.cli.terminal import streams
from llmrun.errors import UsageError

if TYPE_CHECKING:
    from llmrun.convert.plan import Preflight
    from llmrun.convert.result import ConvertResult


@with_groups
def command(
    source: Annotated[str, typer.Argument(metavar="SRC", show_default=False)],
    out: Annotated[Path | None, typer.Argument(metavar="[OUT]", show_default=False)] = None,
    *,
    output_file: Annotated[
        Path | None, typer.Option("-o", "--output", "--outfile", help="The same as OUT.", show_default=False)
    ] = None,
    type: Annotated[
        str, typer.Option("--type", "--outtype", help="Type of the matrices.", metavar="auto|f32|f16|bf16|q8_0")
    ] = "auto",
    pre: Annotated[str | None, typer.Option("--pre", help="Name of the pre-tokenizer, where unknown.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The model's name, instead of the folder's.")] = None,
    converter: Annotated[
        Path | None, typer.Option("--converter", help="Run this convert_hf_to_gguf.py instead.", metavar="PATH")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    output: OutputOptions,
) -> None:
    """Convert a checkpoint (a folder, or a repository of the hub) to GGUF. OUT is a file or a folder; without it
    the file goes into the checkpoint's folder, or for a repository into the current one.

    llmrun convert ./Qwen3-0.6B

    llmrun convert org/name out.gguf --type q8_0
    """
    from llmrun.cli.output import print_json
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.convert.pipeline import convert, preflight
    from llmrun.prepare.checkpoint import find_checkpoint

    if out is not None and output_file is not None:
        raise UsageError("the output is named twice", "give OUT or -o, not both")
    out = out or output_file
    report = StderrReport()
    try:
        found = find_checkpoint(source, report)
        target = Path.cwd() if out is None and found.repo else out
        name = name or found.repo
        if converter is not None:
            from llmrun.convert.external import convert_externally

            result = convert_externally(found.folder, target, converter, type=type, force=force, report=report)
        elif dry_run:
            plan = preflight(found.folder, target, type=type, pre=pre, name=name, force=force)
            print_json(plan) if json else _show_plan(plan)
            return
        else:
            result = convert(found.folder, target, type=type, pre=pre, name=name, force=force, report=report)
    finally:
        report.close()
    if json:
        print_json(result)
    elif not output.quiet:
        _show(result)


def _show(result: "ConvertResult") -> None:
    from llmrun.report import size_text

    types = ", ".join(f"{n} {type}" for type, n in result.tensors.items())
    speed = size_text(result.size_bytes / result.seconds) if result.seconds > 0 else "-"
    streams.say(
        f"{streams.shown(str(result.path))}: {size_text(result.size_bytes)} | {result.arch} {result.file_type} | "
        f"tensors {types} | {result.seconds:.1f} s, {speed}/s"
    )


def _show_plan(plan: "Preflight") -> None:
    from llmrun.report import size_text

    stored = ", ".join(f"{n} {type}" for type, n in plan.stored_types.items())
    lines = (
        ("source", f"{plan.source} ({plan.n_shards} shards, tensors {stored})"),
        ("architecture", f"{plan.architecture} -> {plan.arch}, {plan.n_params / 1e6:.4g}M parameters"),
        ("tokenizer", f"{plan.tokenizer} {plan.pre}, {plan.n_vocab} tokens"),
        ("output", f"{plan.path} ({plan.type}, {plan.n_tensors} tensors, {size_text(plan.size_bytes)})"),
        *(("note", note) for note in plan.notes),
    )
    for label, text in lines:
        print(f"{label + ':':14}{streams.shown(text)}")
