"""`llmrun list`: the models on this machine."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import OutputOptions, with_groups

if TYPE_CHECKING:
    from llmrun.models.inventory import LocalModel


@with_groups
def command(
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="ollama's and LM Studio's models too.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file of llmrun's store again.")] = False,
    catalogue: Annotated[bool, typer.Option("--catalogue", help="The names that stand for models.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    output: OutputOptions,
) -> None:
    """List the models on this machine: llmrun's own and those in the Hugging Face cache."""
    from llmrun.cli.output import print_json, print_table
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.models.inventory import list_models
    from llmrun.models.store import Store

    if catalogue:
        _print_catalogue(json)
        return
    store, report = Store(), StderrReport()
    damaged = store.verify(report) if verify else []
    for damage in damaged:
        report.note(f"{damage.name}: {damage.file} {damage.reason}; llmrun pull {damage.name} fetches it again")
    if verify and not damaged and not output.quiet:
        report.note("every file of llmrun's store is whole")
    models = list_models(store, others=everything)
    if json:
        print_json({"models": models, "damaged": damaged})
    elif models:
        columns = ("name", "size", "quant", "params", "ctx", "modified", "where")
        print_table(columns, [_row(model) for model in models], right=("size", "params", "ctx"))
    elif not output.quiet:
        report.note("no models yet: llmrun pull smollm2 fetches the smallest, llmrun list --catalogue shows names")
    for model in models:
        if model.fault:
            report.note(f"{model.name}: {model.fault}")
    if damaged:
        raise typer.Exit(1)


def _row(model: "LocalModel") -> tuple[str, ...]:
    from llmrun.report import size_text

    where = {"store": "llmrun", "hub": "hugging face", "ollama": "ollama", "lmstudio": "lm studio"}[model.place]
    return (
        model.name,
        size_text(model.size_bytes),
        "damaged" if model.fault else (model.quant or model.kind),
        f"{model.n_params / 1e9:.1f}B" if model.n_params > 999e6 else f"{model.n_params / 1e6:.0f}M",
        str(model.n_ctx_train or "-"),
        datetime.fromtimestamp(model.modified).strftime("%Y-%m-%d %H:%M"),
        where,
    )


def _print_catalogue(json: bool) -> None:
    from llmrun.cli.output import print_json, print_table
    from llmrun.models.catalog import load_catalog

    entries = load_catalog().entries.values()
    if json:
        print_json({"catalogue": list(entries)})
    else:
        rows = [(entry.name, entry.params, entry.licence, entry.description) for entry in entries]
        print_table(("name", "params", "licence", "what it is"), rows, right=("params",))
