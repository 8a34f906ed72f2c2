"""`models.toml` read and checked: every fault is named with its file and line. Knows no store and no source."""

import re
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmrun.errors import UsageError
from llmrun.models.catalog import Catalog, CatalogEntry, Setting
from llmrun.models.names import visible
from llmrun.models.refs import FileRef, PypiRef, parse_ref, ref_text

Table = dict[str, Any]
Check = tuple[str, Callable[[Any], bool]]


def _number(low: float, high: float = float("inf")) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and type(value) is not bool and low <= value <= high


def _count(low: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= low


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


SETTINGS: dict[str, Check] = {
    "temp": ("a number from 0", _number(0)),
    "top-k": ("a whole number from 0", _count(0)),
    "top-p": ("a number from 0 to 1", _number(0, 1)),
    "min-p": ("a number from 0 to 1", _number(0, 1)),
    "repeat-penalty": ("a number from 0", _number(0)),
    "presence-penalty": ("a number from -2 to 2", _number(-2, 2)),
    "frequency-penalty": ("a number from -2 to 2", _number(-2, 2)),
    "ctx": ("a whole number from 1", _count(1)),
    "max-tokens": ("a whole number from 1", _count(1)),
    "system": ("text", _text),
    "template": ("a template's name, or the path of a file", _text),
}
FACTS: dict[str, Check] = {
    "source": ("a reference, or a list of them", lambda value: _text(value) or _texts(value)),
    "parts": ("a list of pypi: references", _texts),
    "sha256": ("64 hex digits", lambda value: _text(value) and re.fullmatch("[0-9a-f]{64}", value) is not None),
    "size-bytes": ("a whole number from 1", _count(1)),
    "licence": ("text", _text),
    "licence-note": ("text", _text),
    "description": ("text", _text),
    "params": ("text", _text),
    "confirmed": ("true or false", lambda value: type(value) is bool),
}


def read_catalog(builtin: Path, user: Path) -> Catalog:
    """Raises UsageError. Where the user's file gives a built-in name no source, its keys change that entry."""
    base = _read(builtin)
    own = _read(user) if user.exists() else _File(user, "", {})
    default = own.tables.pop("default", None)
    if default is not None and not _text(default):
        raise own.fault("default must be a model's name", "default")
    entries = {name: _entry(base, name, {}) for name in base.tables}
    for name, table in own.tables.items():
        known = base.tables.get(name, {})
        replaces = isinstance(table, dict) and ("source" in table or "parts" in table)
        entries[name] = _entry(own, name, {} if replaces else known)
    return Catalog(entries, default)


class _File:
    """One `models.toml`, and where in it a key stands."""

    def __init__(self, path: Path, text: str, tables: Table) -> None:
        self.path, self.text, self.tables = path, text, tables

    def fault(self, message: str, *keys: str, hint: str = "") -> UsageError:
        return UsageError(f"{self.path}, line {self._line(keys)}: {visible(message)}", visible(hint))

    def _line(self, keys: tuple[str, ...]) -> int:
        """The line after the longest beginning of the file that is whole and does not have the key yet."""
        lines, before = self.text.split("\n"), 0
        for count in range(1, len(lines) + 1):
            try:
                found: Any = tomllib.loads("\n".join(lines[:count]) + "\n")
            except tomllib.TOMLDecodeError:
                continue
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None:
                break
            before = count
        return before + 1


def _read(path: Path) -> _File:
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        return _File(path, text, tomllib.loads(text))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text", "save it as UTF-8") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the file's rights") from error
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at line (\d+), column \d+\)", str(error))
        line = where[1] if where else str(text.count("\n") + 1)
        message = str(error).replace(where[0], "") if where else str(error).replace(" (at end of document)", "")
        raise UsageError(f"{path}, line {line}: {message}", "texts in quotes, tables as [name]") from error


def _entry(file: _File, name: str, known: Mapping[str, Any]) -> CatalogEntry:
    table = file.tables[name]
    if not isinstance(table, dict):
        raise file.fault(f"'{name}' must be a table", name, hint=f'write [{name}] and below it source = "..."')
    for key, value in table.items():
        _check(file, name, key, value)
    table = {**known, **table}
    sources = _sources(file, name, table)
    return CatalogEntry(
        name=name,
        sources=sources,
        sha256=table.get("sha256"),
        size_bytes=table.get("size-bytes"),
        defaults=_defaults(file, table),
        licence=table.get("licence", ""),
        licence_note=table.get("licence-note", ""),
        description=table.get("description", ""),
        params=table.get("params", ""),
        confirmed=table.get("confirmed", True),
    )


def _check(file: _File, name: str, key: str, value: Any) -> None:
    if isinstance(value, dict):
        dotted = f'["{name}.{key}"]'
        raise file.fault(
            f"'{key}' is a table inside '{name}'", name, key, hint=f"a name with a dot needs quotes: {dotted}"
        )
    check = SETTINGS.get(key) or FACTS.get(key)
    if check is None:
        near = get_close_matches(key.replace("_", "-"), [*FACTS, *SETTINGS], n=1)
        hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join([*FACTS, *SETTINGS])}"
        raise file.fault(f"'{name}' has an unknown key '{key}'", name, key, hint=hint)
    expected, holds = check
    if not holds(value):
        raise file.fault(f"'{key}' of '{name}' must be {expected}, not {value!r}", name, key)


def _sources(file: _File, name: str, table: Table) -> tuple[str, ...]:
    given = table.get("source", [])
    sources = [given] if isinstance(given, str) else list(given)
    for source in sources:
        ref = _parsed(file, name, "source", source)
        if isinstance(ref, FileRef) and not ref.path.is_absolute():
            raise file.fault(
                f"'{source}' depends on the folder one is in", name, "source", hint="write the whole path"
            )
    if "parts" in table:
        parts = [_parsed(file, name, "parts", part) for part in table["parts"]]
        joined = PypiRef(tuple(part for ref in parts if isinstance(ref, PypiRef) for part in ref.parts))
        if not all(isinstance(ref, PypiRef) for ref in parts):
            raise file.fault(f"'parts' of '{name}' must all be pypi: references", name, "parts")
        sources.insert(0, ref_text(joined))
    if not sources:
        raise file.fault(f"'{name}' has no source", name, hint='add source = "ORG/REPO:QUANT" or another reference')
    return tuple(sources)


def _parsed(file: _File, name: str, key: str, text: str) -> Any:
    try:
        return parse_ref(text, look=False)
    except UsageError as error:
        raise file.fault(error.message, name, key, hint=error.hint) from error


def _defaults(file: _File, table: Table) -> dict[str, Setting]:
    defaults = {key: table[key] for key in SETTINGS if key in table}
    template = file.path.parent / Path(str(defaults.get("template", ""))).expanduser()
    if template.is_file():  # else it is a template's name
        defaults["template"] = str(template)
    return defaults
