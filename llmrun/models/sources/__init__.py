"""Where a model's bytes come from: one module each, all of one shape. They know the store, never the reverse."""

from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from llmrun.models.refs import Ref
from llmrun.models.store import Store
from llmrun.report import Report

Kind = Literal["gguf", "checkpoint"]


class Want(NamedTuple):
    """One source to try. `name` is what the store files it under: the alias, or the canonical reference."""

    name: str
    ref: Ref
    sha256: str | None = None
    size_bytes: int | None = None
    fit_bytes: int | None = None
    """Memory for weights on this machine: decides among quants where none is named. None: not known."""


class Found(NamedTuple):
    """A model on this machine: its files in part order, or a checkpoint's folder."""

    paths: tuple[Path, ...]
    kind: Kind = "gguf"
    source: str = ""
    """The canonical reference that delivers exactly these bytes, quant included."""


class RemoteFile(NamedTuple):
    name: str
    size_bytes: int | None
    sha256: str | None
    url: str


class Offer(NamedTuple):
    """What a fetch would bring, before the first byte of it."""

    files: tuple[RemoteFile, ...]
    kind: Kind = "gguf"
    source: str = ""


class Source(Protocol):
    """A module of this package. All raise NotFoundError or DownloadError."""

    def locate(self, want: Want, store: Store) -> Found | None:
        """What is whole on this machine. No network, no hashing, standard library only: on `run`'s way."""

    def offer(self, want: Want, report: Report) -> Offer:
        """Asks the source; downloads no model data."""

    def fetch(self, want: Want, store: Store, report: Report) -> Found:
        """Makes it be here, verified. Returns at once (after asking for a newer one, where the source has
        revisions and is reachable) if it is."""
