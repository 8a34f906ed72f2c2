"""`llmrun quantize`: a smaller file of a model."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from llmrun.cli.options import OutputOptions, setting, with_groups
from llmrun.cli.perplexity import stopping
from llmrun.cli.terminal import streams
from llmrun.errors import UsageError
from llmrun.report import size_text

if TYPE_CHECKING:
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.evals.comparison import Comparison
    from llmrun.quant.call import MatrixFile, Wish
    from llmrun.quant.quantize import Quantized, Source
    from llmrun.quant.target import Target


@with_groups
def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="SRC TYPE [OUT]", show_default=False)] = None,
    *,
    imatrix: Annotated[str, typer.Option("--imatrix", help="Importance matrix.", metavar="FILE|auto|none")] = "",
    tensor: Annotated[
        list[str] | None,
        typer.Option("--tensor", "--tensor-type", help="Type of some tensors; repeatable.", metavar="RE=TYPE"),
    ] = None,
    output_type: Annotated[
        str | None, typer.Option("--output-type", "--output-tensor-type", help="Type of the output matrix.")
    ] = None,
    embedding_type: Annotated[
        str | None, typer.Option("--embedding-type", "--token-embedding-type", help="Type of the token embeddings.")
    ] = None,
    pure: Annotated[bool, typer.Option("--pure", help="One type for all, no mix.")] = False,
    threads: Annotated[int | None, setting("-t --threads", "CPU threads.", min=1)] = None,
    keep_split: Annotated[bool, typer.Option("--keep-split", help="As many parts as the source has.")] = False,
    prune: Annotated[
        str | None, typer.Option("--prune", "--prune-layers", help="Layers to leave out.", metavar="N,...")
    ] = None,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Take a source that is quantized already.")
    ] = False,
    target_size: Annotated[
        str | None, typer.Option("--target-size", help="The best mix of types for this file size.", metavar="4GB")
    ] = None,
    target_bpw: Annotated[
        float | None, typer.Option("--target-bpw", help="The best mix for these bits per weight.", min=1, max=32)
    ] = None,
    report_quality: Annotated[
        bool, typer.Option("--report", help="Measure the damage: size, perplexity, KL divergence, speed.")
    ] = False,
    file: Annotated[str | None, typer.Option("-f", "--file", help="With --report: the text to measure on.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would make, tensor by tensor.")] = False,
    show_types: Annotated[bool, typer.Option("--list", help="The types; with SRC, the size of each.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    output: OutputOptions,
) -> None:
    """Quantize a model: SRC TYPE [OUT], or SRC OUT TYPE. SRC is any reference; the input is never touched.

    llmrun quantize model-f16.gguf Q4_K_M

    llmrun quantize --list
    """
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.prepare import quantizing

    words = list(words or [])
    report = StderrReport()
    if show_types and not words:
        _list_types(json)
        return
    if not words:
        raise UsageError("there is no model to quantize", "llmrun quantize SRC TYPE [OUT]")
    if show_types:
        source, _ = quantizing.find_source(words[0], report)
        _list_sizes(source, json)
        return
    size = _target(target_size, target_bpw)
    reference, kind, target = _arguments(words) if size is None else _untyped_arguments(words)
    wish = _wish(kind, tensor, output_type, embedding_type, pure, threads, keep_split, prune, allow_requantize)
    source, found = quantizing.find_source(reference, report)
    name = kind if size is None else (target_size or f"{target_bpw:g}bpw").replace(" ", "")
    place = Path(target).expanduser() if target else quantizing.default_target(reference, found, name)
    if not dry_run:
        quantizing.refuse_targets(source, place, wish, force=force)
    with stopping() as stop:
        matrix = quantizing.matrix_for(
            imatrix or ("none" if size is None else "auto"), reference, source, report, threads, stop
        )
    mix: tuple[str, ...] = ()
    if size is not None:
        from llmrun.quant.target import find_mix

        chosen = find_mix(source, size, wish, matrix, report)
        wish, mix = chosen.wish, chosen.mix.summary()
    result = _run(source, place, wish, matrix, report, dry_run=dry_run, force=force)
    quality = _quality(reference, result, file, threads, report) if report_quality and not dry_run else None
    _show(result, mix, report, quality, json=json)


def _arguments(words: list[str]) -> tuple[str, str, str | None]:
    """Source, type, and output where given. Of the two orders, the word that names a type decides."""
    from llmrun.quant.types import find_file_type, parse_file_type

    if len(words) > 3:
        raise UsageError(f"{words[3]!r} is one word too many", "llmrun quantize SRC TYPE [OUT]")
    if len(words) < 2:
        raise UsageError("there is no type", "llmrun quantize SRC TYPE [OUT]; llmrun quantize --list shows the types")
    if len(words) == 2:
        return words[0], parse_file_type(words[1]), None
    source, first, second = words
    if find_file_type(first):
        return source, parse_file_type(first), second
    if find_file_type(second) or "." in first or "/" in first:
        return source, parse_file_type(second), first
    return source, parse_file_type(first), second


def _untyped_arguments(words: list[str]) -> tuple[str, str, str | None]:
    """Source, the type the search begins with, and output where given."""
    if len(words) > 2:
        raise UsageError(f"{words[2]!r} is one word too many: a target names no type", "llmrun quantize SRC [OUT]")
    return words[0], "Q8_0", words[1] if len(words) > 1 else None


def _target(size: str | None, bits: float | None) -> "Target | None":
    if size is not None and bits is not None:
        raise UsageError("--target-size and --target-bpw exclude each other")
    from llmrun.quant.target import Target, parse_size

    if size is not None:
        return Target(n_bytes=parse_size(size))
    return None if bits is None else Target(bits=bits)


def _quality(
    reference: str, result: "Quantized", file: str | None, threads: int | None, report: "StderrReport"
) -> "Comparison":
    from llmrun.prepare.comparing import compare

    with stopping() as stop:
        return compare(
            [str(result.paths[0])], reference, file, report=report, threads=threads, stop=stop, with_reference=True
        )


def _wish(
    kind: str,
    tensor: list[str] | None,
    output_type: str | None,
    embedding_type: str | None,
    pure: bool,
    threads: int | None,
    keep_split: bool,
    prune: str | None,
    allow_requantize: bool,
) -> "Wish":
    from llmrun.prepare.quantizing import quantize_threads
    from llmrun.quant.call import Wish
    from llmrun.quant.types import parse_tensor_type

    pairs = []
    for text in tensor or []:
        pattern, equals, type = text.rpartition("=")
        if not equals or not pattern:
            raise UsageError(f"--tensor {text} is not of the form RE=TYPE", "such as --tensor attn_v=Q6_K")
        pairs.append((pattern, parse_tensor_type(type)))
    return Wish(
        type=kind,
        tensor_types=tuple(pairs),
        output_type=parse_tensor_type(output_type) if output_type else None,
        embedding_type=parse_tensor_type(embedding_type) if embedding_type else None,
        pure=pure,
        threads=quantize_threads(threads),
        keep_split=keep_split,
        prune=_layers(prune),
        allow_requantize=allow_requantize,
    )


def _layers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(number) for number in text.split(",")})) if text else ()
    except ValueError:
        raise UsageError(f"--prune {text} is no list of layers", "such as --prune 3,7") from None


def _run(
    source: "Source",
    target: Path,
    wish: "Wish",
    matrix: "MatrixFile | None",
    report: "StderrReport",
    *,
    dry_run: bool,
    force: bool,
) -> "Quantized":
    from llmrun.quant.quantize import plan, quantize

    if dry_run:
        return plan(source, wish, matrix)
    try:
        return quantize(source, target, wish, matrix, report, force=force)
    except KeyboardInterrupt:
        report.close()
        _leave()


def _leave() -> NoReturn:
    """The library's thread cannot be stopped, and would call into an interpreter that is being taken down."""
    streams.say("interrupted")
    os._exit(130)


def _show(
    result: "Quantized", mix: tuple[str, ...], report: "StderrReport", quality: "Comparison | None", *, json: bool
) -> None:
    _explain(result, report)
    if json:
        from llmrun.cli.output import jsonable, print_json

        print_json({**jsonable(result), "mix": mix, "report": quality, "notes": report.notes})
        return
    for line in mix:
        print(line)
    if result.dry_run:
        _print_tensors(result)
    name = result.paths[0] if result.paths else "dry run"
    print(
        f"{streams.shown(str(name))}: {result.type}, {size_text(result.size_before)} -> "
        f"{size_text(result.size_after)} ({result.bits_before:.2f} -> {result.bits_after:.2f} bits per weight)"
        + ("" if result.dry_run else f", {result.seconds:.1f} s")
    )
    if quality is not None:
        from llmrun.cli.report import print_comparison

        print_comparison(quality)


def _explain(result: "Quantized", report: "StderrReport") -> None:
    if result.fallbacks:
        kinds = ", ".join(f"{f.n} {f.wanted} -> {f.got}" for f in result.fallbacks)
        columns = ", ".join(str(n) for n in sorted({f.n_columns for f in result.fallbacks}))
        report.note(
            f"{result.n_fallback} of {len(result.tensors)} tensors fell back to another type, since their rows of "
            f"{columns} are no multiple of its block: {kinds}"
        )
    if result.size_after >= result.size_before:
        report.note(
            f"the result is not smaller than its source ({size_text(result.size_after)} of "
            f"{size_text(result.size_before)}): llmrun quantize --list SRC shows the size of each type"
        )


def _print_tensors(result: "Quantized") -> None:
    from llmrun.cli.output import print_table

    rows = [
        (t.name, "x".join(map(str, t.shape)), t.type_before, t.type_after, t.bytes_before, t.bytes_after)
        for t in result.tensors
    ]
    columns = ("tensor", "shape", "from", "to", "bytes", "bytes after")
    print_table(columns, rows, right=("bytes", "bytes after"))


def _list_types(json: bool) -> None:
    from llmrun.cli.output import print_json, print_table
    from llmrun.quant.types import DEFAULT_TENSOR_TYPE, needs_imatrix

    rows = [
        {
            "type": name,
            "tensor_type": type.name,
            "bits_per_weight": type.bits_per_weight,
            "needs_imatrix": needs_imatrix("", type.name, name),
        }
        for name, type in sorted(DEFAULT_TENSOR_TYPE.items(), key=lambda item: item[1].bits_per_weight)
    ]
    if json:
        print_json(rows)
        return
    print_table(
        ("type", "bits", "most tensors", "matrix"),
        [
            (
                row["type"],
                f"{row['bits_per_weight']:.4g}",
                row["tensor_type"],
                "needed" if row["needs_imatrix"] else "",
            )
            for row in rows
        ],
        right=("bits",),
    )


def _list_sizes(source: "Source", json: bool) -> None:
    from llmrun.cli.output import print_json, print_table
    from llmrun.quant.quantize import list_sizes

    sizes = list_sizes(source)
    if json:
        print_json(sizes)
        return
    rows = [
        (s.type, f"{s.bits:.2f}", size_text(s.size), s.n_fallback or "", "needed" if s.needs_imatrix else "")
        for s in sizes
    ]
    print_table(("type", "bits", "size", "fell back", "matrix"), rows, right=("bits", "size", "fell back"))
