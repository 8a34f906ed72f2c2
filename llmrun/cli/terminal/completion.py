"""What a shell offers in a model's place: the catalogue's names and the models here, found without opening any."""

import os

import typer

from llmrun.errors import LlmrunError


def typed_words() -> list[str]:
    """The command line that a shell is completing, after the program's name."""
    # Typer's script for bash gives the one, those for zsh, fish and PowerShell the other.
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()[1:]


def any_model() -> list[str]:
    """Names from the catalogue, then models that are here. None of a catalogue with a fault: the command says it."""
    from llmrun.models.catalog import load_catalog

    try:
        names = list(load_catalog().entries)
    except LlmrunError:
        names = []
    return list(dict.fromkeys([*names, *_here()]))


def first_word(ctx: typer.Context) -> list[str]:
    """As `any_model`, where the first of several words is the model and the rest are text."""
    sources = (ctx.get_parameter_source(name) for name in ("words", "model"))
    return [] if any(source is not None and source.name == "COMMANDLINE" for source in sources) else any_model()


def local_model() -> list[str]:
    """Models that are here, and the user's own names."""
    from llmrun.models.aliases import own_tables

    try:
        own = [name for name in own_tables() if name != "default"]
    except LlmrunError:
        own = []
    return list(dict.fromkeys([*own, *_here()]))


def _here() -> list[str]:
    from llmrun.models.places import names
    from llmrun.models.store import Store

    return names(Store())
