"""From what the user typed to files on this machine. Knows every source; loads none before it is needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from llmrun.models.catalog import Catalog
from llmrun.models.sources import Kind, Want
from llmrun.models.store import Store
from llmrun.report import Report


class Resolved(NamedTuple):
    """`paths` is empty until the model is here; `fetch` then fills it.

    `name` is what lists and JSON call the model (the alias, or the reference's canonical text), `source` the
    reference its bytes came from, `defaults` the catalogue's settings under their flag names.
    """

    name: str
    wants: tuple[Want, ...]
    paths: tuple[Path, ...] = ()
    kind: Kind = "gguf"
    source: str = ""
    defaults: Mapping[str, str | int | float] = {}
    licence: str = ""
    licence_note: str = ""


def resolve(text: str, catalog: Catalog, store: Store, report: Report) -> Resolved:
    """No network. Raises UsageError (no reference), NotFoundError (no such alias, file or part)."""
    raise NotImplementedError


def fetch(resolved: Resolved, store: Store, report: Report, fit_bytes: int | None = None) -> Resolved:
    """Tries the sources in order; raises the last one's error where none delivers.

    `fit_bytes` is this machine's memory for weights: it decides among quants where none is named.
    """
    raise NotImplementedError
