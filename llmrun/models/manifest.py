"""What a name in the store stands for, as one small JSON file. Knows no blobs and no locks."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

Meta = Mapping[str, str | int | float]


class StoredFile(NamedTuple):
    """`name` is the file's name at its source, for display."""

    name: str
    sha256: str
    size_bytes: int


class Entry(NamedTuple):
    """One name in the store. `files` are in part order; `created` is in seconds since the epoch."""

    name: str
    source: str
    files: tuple[StoredFile, ...]
    created: float
    meta: Meta

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def read_manifest(path: Path) -> Entry | None:
    """None where there is none, or none that this program wrote."""
    try:
        fields = json.loads(path.read_bytes())
        files = tuple(StoredFile(**file) for file in fields.pop("files"))
        entry = Entry(files=files, **fields)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    whole = all(_is_sha256(file.sha256) and isinstance(file.size_bytes, int) for file in files)
    typed = isinstance(entry.name, str) and isinstance(entry.source, str) and isinstance(entry.meta, dict)
    return entry if files and whole and typed else None


def _is_sha256(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(char in "0123456789abcdef" for char in text)


def write_manifest(path: Path, entry: Entry) -> None:
    fields = entry._asdict() | {"files": [file._asdict() for file in entry.files], "meta": dict(entry.meta)}
    write_whole(path, json.dumps(fields, indent=1).encode("utf-8"))


def safe_name(name: str) -> str:
    """A file name for any text: different texts give different ones, also where case does not count."""
    safe = "".join(char if char in "abcdefghijklmnopqrstuvwxyz0123456789-_." else f"%{ord(char):x}." for char in name)
    if safe.startswith(".") or safe.partition(".")[0] in _DEVICES:
        safe = f"%{safe}"
    if len(safe) > 150:
        import hashlib

        safe = f"{safe[:100]}%{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    return safe


def write_whole(path: Path, data: bytes) -> None:
    """Either the old file or the new one is there, whatever happens."""
    temp = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temp.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)


# Names that Windows keeps for devices, whatever follows the first dot.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
