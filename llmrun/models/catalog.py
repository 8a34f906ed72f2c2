"""The names in `models.toml`: the built-in catalogue, then the user's own file, which wins."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from llmrun import __version__, paths
from llmrun.models.manifest import write_whole

Setting = str | int | float


class CatalogEntry(NamedTuple):
    """`sources` are references tried in order; `defaults` are settings under their flag names."""

    name: str
    sources: tuple[str, ...]
    sha256: str | None
    size_bytes: int | None
    defaults: Mapping[str, Setting]
    licence: str
    licence_note: str
    description: str
    params: str
    confirmed: bool


class Catalog(NamedTuple):
    """Every entry by name, and the user's `default = ` where there is one."""

    entries: Mapping[str, CatalogEntry]
    default: str | None = None

    def find(self, name: str) -> CatalogEntry | None:
        """Case does not count, and `qwen3:4b`, as ollama's users write it, is `qwen3-4b`."""
        lower = name.lower()
        return (
            self.entries.get(name)
            or self.entries.get(lower)
            or self.entries.get(lower.replace(":", "-"))
            or next((entry for key, entry in self.entries.items() if key.lower() == lower), None)
        )

    def near(self, name: str) -> list[str]:
        """The names that `name` may have been meant to be, best first."""
        from difflib import get_close_matches

        lower = name.lower().replace(":", "-")
        starts = [key for key in self.entries if key.lower().startswith(lower)] if len(lower) > 2 else []
        close = get_close_matches(lower, list(self.entries), n=3, cutoff=0.6)
        return list(dict.fromkeys([*starts, *close]))[:5]


def builtin_file() -> Path:
    """In an installed wheel inside the package, in a checkout at its top."""
    package = Path(__file__).parents[1]
    inside = package / "models.toml"
    return inside if inside.exists() else package.parent / "models.toml"


def user_file() -> Path:
    return paths.config_dir() / "models.toml"


def load_catalog() -> Catalog:
    """Raises UsageError with file and line for anything that does not belong."""
    files = [builtin_file(), user_file()]
    stamp = [__version__, *(_stamp(file) for file in files)]
    # tomllib costs 15 ms to import and check with; the same as JSON costs 0.5 ms.
    cached = paths.cache_dir() / "catalogue.json"
    with suppress(OSError, ValueError, TypeError, KeyError):
        data = json.loads(cached.read_bytes())
        if data["stamp"] == stamp:
            return _from_json(data)
    from llmrun.models.catalog_file import read_catalog

    catalog = read_catalog(*files)
    entries = [entry._asdict() | {"defaults": dict(entry.defaults)} for entry in catalog.entries.values()]
    with suppress(OSError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"stamp": stamp, "entries": entries, "default": catalog.default})
        write_whole(cached, text.encode("utf-8"))
    return catalog


def _stamp(file: Path) -> list[str | int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return [str(file), status.st_mtime_ns, status.st_size]


def _from_json(data: Any) -> Catalog:
    entries = (CatalogEntry(**entry | {"sources": tuple(entry["sources"])}) for entry in data["entries"])
    return Catalog({entry.name: entry for entry in entries}, data["default"])
