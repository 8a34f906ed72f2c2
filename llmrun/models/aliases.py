"""Names that `llmrun alias` writes into the user's `models.toml`, leaving the rest of that file as it is."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrun.errors import NotFoundError, UsageError
from llmrun.models.catalog import Catalog, user_file
from llmrun.models.manifest import write_whole
from llmrun.models.names import visible
from llmrun.models.refs import AliasRef, parse_ref
from llmrun.models.resolve import resolve
from llmrun.models.store import Store
from llmrun.report import Quiet


@dataclass(frozen=True)
class Alias:
    """`replaced`: what the name stood for in the user's file before, or ""."""

    name: str
    source: str
    path: str
    replaced: str = ""


def write_alias(name: str, text: str, catalog: Catalog, store: Store, force: bool = False) -> Alias:
    """Makes `name` stand for the reference `text`. Raises UsageError for a name that is taken (without `force`)
    or can be none, and whatever `resolve` does for a reference that leads nowhere."""
    if parse_ref(name, look=False) != AliasRef(name) or name == "default":
        raise UsageError(f"'{visible(name)}' can be no name", "use letters, digits, '.', '_' and '-'")
    source = resolve(text, catalog, store, Quiet()).name
    if source.lower() == name.lower():
        raise UsageError(f"{name} cannot stand for itself", "give another name or reference")
    old, before = own_tables(), _read(user_file())
    if name in old and not force:
        raise UsageError(f"{name} already stands for {_source(old[name])}", "--force replaces it")
    kept = _without(before, name)
    gap = "" if not kept or kept.endswith("\n\n") else "\n" if kept.endswith("\n") else "\n\n"
    added = f"{gap}[{_key(name)}]\nsource = {_string(source)}\n"
    _write(kept + added, {**old, name: {"source": source}})
    return Alias(name, source, str(user_file()), _source(old[name]) if name in old else "")


def remove_alias(name: str) -> Alias:
    """Forgets a name of the user's own. Raises NotFoundError."""
    old = own_tables()
    if name not in old:
        raise NotFoundError(f"{visible(name)} is no name in {user_file()}", "built-in names stay")
    _write(_without(_read(user_file()), name), {key: table for key, table in old.items() if key != name})
    return Alias(name, _source(old[name]), str(user_file()))


def own_tables() -> dict[str, Any]:
    """The user's file as it is, `default` included. Raises UsageError where it cannot be read."""
    try:
        return tomllib.loads(_read(user_file()))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{user_file()}: {error}", "correct it, or move it away") from error


def is_bare(table: Any) -> bool:
    """Whether a table says no more than `write_alias` writes."""
    return isinstance(table, dict) and table.keys() == {"source"}


def _source(table: Any) -> str:
    source = table.get("source", "something else") if isinstance(table, dict) else table
    return visible(str(source if isinstance(source, str) else ", ".join(source)))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "check its rights, and that it is UTF-8 text") from error


def _write(text: str, expected: dict[str, Any]) -> None:
    """Only if the text means what it should: nothing else in the file may change its meaning."""
    path = user_file()
    try:
        data, right = text.encode("utf-8"), tomllib.loads(text) == expected
    except (tomllib.TOMLDecodeError, UnicodeEncodeError):
        data, right = b"", False
    if not right:
        raise UsageError(f"{path} is written in a way that llmrun cannot edit safely", "edit it by hand")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def _without(text: str, name: str) -> str:
    """`text` without the table `name`, from its header to its last key: a comment after that is the next one's."""
    kept: list[str] = []
    pending: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            inside = header[1].strip("\"'") == name
            kept += pending
            pending = []
        if not inside:
            kept.append(line)
        elif line.lstrip().startswith("#") or (pending and not line.strip()):
            pending.append(line)
        elif line.strip():
            pending = []
    return "".join(kept + pending)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _string(name)


def _string(text: str) -> str:
    """JSON's escapes are TOML's, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
