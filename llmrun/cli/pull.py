"""`llmrun pull`: fetch a model to this machine."""

from typing import Annotated

import typer

from llmrun.cli.options import OutputOptions, with_groups
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import any_model


@with_groups
def command(
    references: Annotated[
        list[str], typer.Argument(metavar="MODEL...", show_default=False, autocompletion=any_model)
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be fetched.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per model.")] = False,
    output: OutputOptions,
) -> None:
    """Fetch models, whole and checked; a pull that was cut short goes on where it stopped.

    llmrun pull smollm2

    llmrun pull Qwen/Qwen3-0.6B-GGUF:Q8_0
    """
    from llmrun.cli.output import print_json
    from llmrun.cli.terminal.reporting import StderrReport
    from llmrun.machine.memory import read_memory
    from llmrun.models.catalog import load_catalog
    from llmrun.models.refs import public_url
    from llmrun.models.resolve import fetch, offer, resolve
    from llmrun.models.store import Store
    from llmrun.report import size_text

    report, store, catalog = StderrReport(), Store(), load_catalog()
    for reference in references:
        found = resolve(reference, catalog, store, report)
        if dry_run:
            offered = offer(found, report, read_memory().free_bytes)
            for file in offered.files:
                print(streams.shown(f"{file.name}  {size_text(file.size_bytes or 0)}  {public_url(file.url)}"))
            continue
        here = bool(found.paths)
        found = fetch(found, store, report, read_memory().free_bytes)
        n_bytes = sum(path.stat().st_size for path in found.paths if path.is_file())
        if json:
            pulled = {"name": found.name, "source": found.source, "paths": found.paths, "size_bytes": n_bytes}
            print_json(pulled, indent=None)
        elif not output.quiet:
            print(f"{streams.shown(found.name)} is {'here already' if here else 'here'} ({size_text(n_bytes)})")
