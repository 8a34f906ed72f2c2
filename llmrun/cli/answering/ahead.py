"""The load of a model may begin before the command line is parsed: parsing takes as long as a small model's load."""

import os
from collections.abc import Sequence

from llmrun.engine.model import ModelSettings
from llmrun.errors import LlmrunError
from llmrun.models.catalog import load_catalog
from llmrun.models.resolve import Resolved, resolve
from llmrun.models.store import Store
from llmrun.prepare.loading import Loading
from llmrun.prepare.settings import ContextWish, Room
from llmrun.report import Quiet, Report

_begun: Loading | None = None


def begin(arguments: Sequence[str]) -> None:
    """Start to load the model of `run MODEL ...`, if it is here and small. Whatever is wrong is left to be said by
    the command itself, which checks all of it again. Not where the load's log may be asked for."""
    global _begun
    if "LLMRUN_VERBOSE" in os.environ or any(_may_be_verbose(word) for word in arguments):
        return
    try:
        found = resolve(arguments[1], load_catalog(), Store(), Quiet())
        if found.paths and found.kind == "gguf":
            _begun = Loading(found, ModelSettings(), Quiet(), start=False)
            if _begun.fits_in_any_case(ContextWish()):
                _begun.start()
            else:
                _begun = None
    except (LlmrunError, OSError):
        _begun = None


def _may_be_verbose(word: str) -> bool:
    return word.startswith("--verb") or (word.startswith("-") and not word.startswith("--") and "v" in word)


def loading(found: Resolved, settings: ModelSettings, report: Report, wish: ContextWish, room: Room) -> Loading:
    """The load that was begun, where it is of this model and fits what is asked for; else a new one."""
    begun = _begun
    if begun is None:
        return Loading(found, settings, report, wish, room)
    if begun.found.paths == found.paths and settings == ModelSettings() and begun.fits_in_any_case(wish):
        begun.adopt(report, wish, room)
        return begun
    begun.stop()
    return Loading(found, settings, report, wish, room)


def end() -> None:
    """No load goes on while the process ends."""
    if _begun is not None:
        _begun.stop()
