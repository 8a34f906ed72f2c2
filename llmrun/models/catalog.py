"""The names in `models.toml`: the built-in catalogue, then the user's own file, which wins."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class CatalogEntry(NamedTuple):
    """`sources` are references tried in order; `defaults` are settings under their flag names."""

    name: str
    sources: tuple[str, ...]
    sha256: str | None = None
    size_bytes: int | None = None
    defaults: Mapping[str, str | int | float] = {}
    licence: str = ""
    licence_note: str = ""
    description: str = ""
    params: str = ""
    confirmed: bool = True


class Catalog(NamedTuple):
    """Every entry by name, and the user's `default = ` where there is one."""

    entries: Mapping[str, CatalogEntry]
    default: str | None = None


def load_catalog(user_file: Path | None = None) -> Catalog:
    """Raises UsageError with file and line for anything that does not belong."""
    raise NotImplementedError
