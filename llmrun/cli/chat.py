"""`llmrun chat`: a conversation in the terminal, kept on disk."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llmrun.cli.options import (
    AdapterOptions,
    LoadOptions,
    OutputOptions,
    SamplingOptions,
    ShapeOptions,
    setting,
    with_groups,
)
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.completion import any_model

if TYPE_CHECKING:
    from llmrun.chat.session import SessionFile


@with_groups
def command(
    reference: Annotated[
        str | None, typer.Argument(metavar="[MODEL|SESSION]", show_default=False, autocompletion=any_model)
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="The model, as an option.", autocompletion=any_model)
    ] = None,
    system: Annotated[str | None, setting("-s --system", "System message.")] = None,
    max_tokens: Annotated[int | None, setting("-n --max-tokens --n-predict", "Most tokens of one answer.")] = None,
    template: Annotated[str | None, setting("--template", "Chat template.", metavar="NAME|FILE")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last session, or the --session.")] = False,
    session: Annotated[str | None, typer.Option("--session", help="The session's name.")] = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="List the sessions.")] = False,
    export: Annotated[str | None, typer.Option("--export", help="Print a session.", metavar="md|json")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Text as it comes, no Markdown.")] = False,
    on_full: Annotated[
        str, setting("--on-full", "When the context is full.", metavar="shift|recompute|stop")
    ] = "shift",
    reasoning: Annotated[str, setting("--reasoning", "Of a reasoning model.", metavar="show|hide")] = "show",
    sampling: SamplingOptions,
    shape: ShapeOptions,
    adapter: AdapterOptions,
    load: LoadOptions,
    output: OutputOptions,
) -> None:
    """Hold a conversation. /help in it lists its commands.

    llmrun chat smollm2

    llmrun chat --resume
    """
    from llmrun.chat.session import SessionFile, latest_session, list_sessions

    if sessions:
        print("\n".join(streams.shown(found.name) for found in list_sessions()))
        return
    # With --resume and --export the argument is a session's name, and -m the model.
    named = session or (reference if resume or export else None)
    file = SessionFile.named(named) if named else (latest_session() if resume or export else SessionFile.fresh())
    if export:
        _export(file, export)
        return
    from llmrun.cli.answering.flow import Groups
    from llmrun.cli.repl.loop import converse
    from llmrun.cli.repl.talk import TalkSettings

    groups = Groups(sampling, shape, adapter, load, output)
    limit = None if max_tokens is not None and max_tokens < 0 else max_tokens
    settings = TalkSettings(groups, limit, template, None, on_full, reasoning)
    chosen = model or (None if resume else reference)
    raise typer.Exit(converse(chosen, file, settings, system=system, resume=resume, plain=plain))


def _export(file: "SessionFile", form: str) -> None:
    from llmrun.chat.session import export
    from llmrun.cli.terminal.reporting import StderrReport

    conversation, _ = file.load(StderrReport())
    sys.stdout.buffer.write(export(conversation, form).encode("utf-8", "replace"))
