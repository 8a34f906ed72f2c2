"""`llmrun show`: what a model is, here or at its source."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import OutputOptions, with_groups
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import any_model
from llmrun.errors import UsageError

if TYPE_CHECKING:
    from llmrun.models.describe import Description


@with_groups
def command(
    reference: Annotated[str, typer.Argument(metavar="MODEL", show_default=False, autocompletion=any_model)],
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="Every tensor.")] = False,
    template: Annotated[bool, typer.Option("--template", help="The chat template, as it is in the file.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="Every metadata key.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    output: OutputOptions,
) -> None:
    """Show what a model is. One that is not here is read at its source: only its header is fetched."""
    if sum((tensors, template, metadata, json)) > 1:
        raise UsageError("--tensors, --template, --metadata and --json exclude each other")
    from llmrun.cli.output import print_json
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.models.catalog import load_catalog
    from llmrun.models.describe import describe
    from llmrun.models.headers import read_headers
    from llmrun.models.resolve import resolve
    from llmrun.models.store import Store

    report = StderrReport()
    resolved = resolve(reference, load_catalog(), Store(), report)
    described = describe(resolved, read_headers(resolved, report))
    if json:
        print_json(described)
    elif template:
        _write(described.info.chat_template or "", report)
    elif tensors:
        _print_tensors(described)
    elif metadata:
        for key, value in described.metadata.items():
            print(f"{streams.shown(key)} = {streams.shown(_value(value))}")
    else:
        _print_summary(described)
    if described.missing_bytes:
        short = described.size_bytes + described.missing_bytes
        report.note(f"incomplete: expected {short} bytes by its own header, has {described.size_bytes}")
        raise typer.Exit(1)


def _write(text: str, report: object) -> None:
    if not text:
        from llmrun.errors import NotFoundError

        raise NotFoundError("this model has no chat template")
    if streams.is_terminal(sys.stdout):
        print(streams.shown(text))
    else:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def _print_tensors(described: "Description") -> None:
    from llmrun.cli.output import print_table
    from llmrun.report import size_text

    rows = [(t.name, " x ".join(map(str, t.shape)), t.type, size_text(t.n_bytes)) for t in described.tensors]
    print_table(("tensor", "shape", "type", "size"), rows, right=("size",))


def _value(value: object) -> str:
    from llmrun.models.describe import Array

    if isinstance(value, Array):
        first = ", ".join(repr(part) for part in value.first)
        return f"{value.type}[{value.length}]: {first}{', ...' if value.length > len(value.first) else ''}"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def _print_summary(described: "Description") -> None:
    from llmrun.report import size_text

    info = described.info
    template = "none" if info.chat_template is None else f"{len(info.chat_template)} characters (--template)"
    named = f", named: {', '.join(info.named_templates)}" if info.named_templates else ""
    layer = info.layers[0] if info.layers else None
    rows = [
        ("model", described.name),
        ("name", info.name or "-"),
        ("kind", described.kind),
        ("source", described.source or "-"),
        ("file", described.paths[0] if described.paths else "not here"),
        ("size", f"{size_text(described.size_bytes)}, {info.bits_per_weight:.2f} bits per weight, {info.quant}"),
        ("parameters", f"{info.n_params:,}"),
        ("architecture", f"{info.arch}, {info.n_layer} layers, width {info.n_embd}, vocabulary {info.n_vocab:,}"),
        ("attention", f"{layer.n_head} heads, {layer.n_head_kv} for K and V" if layer else "-"),
        ("context", f"trained for {info.n_ctx_train:,} tokens"),
        ("window", f"{info.sliding_window} tokens on sliding layers" if info.sliding_window else "none"),
        ("experts", f"{info.n_expert}, {info.n_expert_used} used" if info.n_expert else "none"),
        ("tokenizer", f"{info.tokenizer.model} ({info.tokenizer.pre or 'default'})" if info.tokenizer else "none"),
        ("template", template + named),
        ("licence", described.licence or "not stated"),
        ("terms", described.licence_note),
        ("tensors", ", ".join(f"{t.n_tensors} {t.type} ({size_text(t.n_bytes)})" for t in described.tensor_types)),
    ]
    for name, value in rows:
        if value and (value != "none" or name == "template"):
            print(f"{name:<13}{streams.shown(value)}")
