"""`llmrun alias`: names of one's own for models."""

from typing import Annotated

import typer

from llmrun.cli.options import OutputOptions, with_groups
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import any_model
from llmrun.errors import UsageError


@with_groups
def command(
    name: Annotated[str, typer.Argument(show_default=False)],
    reference: Annotated[
        str | None, typer.Argument(metavar="MODEL", show_default=False, autocompletion=any_model)
    ] = None,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the name.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what the name stood for.")] = False,
    output: OutputOptions,
) -> None:
    """Let NAME stand for a model, in the models.toml of the configuration folder."""
    from llmrun.models import aliases
    from llmrun.models.catalog import load_catalog
    from llmrun.models.store import Store

    if remove:
        gone = aliases.remove_alias(name)
        print(f"{streams.shown(gone.name)} no longer stands for {streams.shown(gone.source)}")
        return
    if reference is None:
        raise UsageError("an alias needs a name and a model", "llmrun alias NAME MODEL")
    made = aliases.write_alias(name, reference, load_catalog(), Store(), force)
    print(f"{streams.shown(made.name)} stands for {streams.shown(made.source)} (in {made.path})")
