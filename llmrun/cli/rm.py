"""`llmrun rm`: delete a model from this machine."""

import sys
from typing import Annotated

import typer

from llmrun.cli.options import OutputOptions, with_groups
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import local_model


@with_groups
def command(
    references: Annotated[
        list[str], typer.Argument(metavar="MODEL...", show_default=False, autocompletion=local_model)
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also from other programs' folders.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per model.")] = False,
    output: OutputOptions,
) -> None:
    """Delete models. What another name still uses stays; files of your own are never deleted."""
    from llmrun.cli.output import print_json
    from llmrun.models.catalog import load_catalog
    from llmrun.models.removal import plan_removal
    from llmrun.models.store import Store
    from llmrun.report import size_text

    catalog, store = load_catalog(), Store()
    for reference in references:
        removal, act = plan_removal(reference, catalog, store, others=everything)
        frees = f"frees {size_text(removal.freed_bytes)}" if removal.freed_bytes else "frees nothing"
        if not yes and not json and streams.is_terminal(sys.stdin):
            answer = input(f"remove {streams.shown(removal.name)} ({frees})? [y/N] ")
            if answer.strip().lower() not in ("y", "yes"):
                streams.say("kept")
                continue
        act()
        if json:
            print_json(removal, indent=None)
            continue
        kept = f"; its data is still used by {', '.join(removal.kept_for)}" if removal.kept_for else ""
        print(f"removed {streams.shown(removal.name)}: {frees}{streams.shown(kept)}")
