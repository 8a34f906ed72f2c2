"""llmrun's own models: blobs named by their sha256, and one small manifest a name. Knows no source.

blobs/sha256-<hex>       whole and verified, never written in place
manifests/<name>.json    what a name stands for; several may share a blob
work/<name>/             downloads under way, kept for resuming, never listed
locks/                   one download of one model at a time
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from llmrun import paths
from llmrun.errors import DownloadError, NotFoundError, StoreError
from llmrun.models.names import visible
from llmrun.report import Report

STALE_WORK_S = 14 * 24 * 3600
CHUNK_BYTES = 1 << 20


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
    meta: Mapping[str, str | int | float] = {}

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Removed(NamedTuple):
    """`kept_for`: the other names that still use some of the data."""

    entry: Entry
    freed_bytes: int
    kept_for: tuple[str, ...]


class Damage(NamedTuple):
    """A blob that is not what its name says; it has been set aside, so that the next pull fetches it again."""

    name: str
    file: str
    reason: str


class Incoming(NamedTuple):
    """A whole, verified file in the work directory of its name, to be moved in."""

    path: Path
    name: str
    sha256: str


class Store:
    """All methods may be called by several processes at once; writers hold the lock named in their contract."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else paths.cache_dir() / "store"

    # Reading: no lock, since manifests and blobs only ever appear whole.

    def find(self, name: str) -> Entry | None:
        return _read_manifest(self._manifest(name))

    def find_source(self, source: str) -> Entry | None:
        """An entry under any name whose bytes came from `source`."""
        return next((entry for entry in self.entries() if entry.source == source), None)

    def entries(self) -> list[Entry]:
        """By name. A manifest that cannot be read is passed over."""
        found = (_read_manifest(path) for path in (self.root / "manifests").glob("*.json"))
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.name)

    def paths(self, entry: Entry) -> tuple[Path, ...]:
        return tuple(self._blob(file.sha256) for file in entry.files)

    def damage(self, entry: Entry) -> str | None:
        """Why the entry's files cannot be used (missing, wrong size), or None. Reads sizes only."""
        for file, path in zip(entry.files, self.paths(entry), strict=True):
            try:
                size_bytes = path.stat().st_size
            except FileNotFoundError:
                return f"the data of {visible(file.name)} is missing"
            if size_bytes != file.size_bytes:
                return f"{visible(file.name)} has {size_bytes} bytes instead of {file.size_bytes}"
        return None

    # Writing.

    @contextmanager
    def lock(self, name: str, report: Report) -> Iterator[None]:
        """Held around the fetch of one model: two pulls of it make one download."""
        from filelock import FileLock, Timeout

        path = self._dir("locks") / f"{safe_name(name)}.lock"
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report.note(f"another llmrun is fetching {visible(name)}: waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def work_dir(self, name: str) -> Path:
        """Where the fetch of `name`, which holds its lock, may keep parts between runs. `add` removes it."""
        path = self._dir("work") / safe_name(name)
        path.mkdir(exist_ok=True)
        return path

    def add(
        self,
        name: str,
        source: str,
        files: Sequence[Incoming],
        meta: Mapping[str, str | int | float] | None = None,
    ) -> Entry:
        """Moves verified files in and names them. The caller holds `lock(name)` and has checked the hashes."""
        raise NotImplementedError

    def link(self, name: str, entry: Entry) -> Entry:
        """A further name for what `entry` has."""
        raise NotImplementedError

    def remove(self, name: str) -> Removed:
        """Forgets the name, and its blobs where no other name uses them. Raises NotFoundError."""
        raise NotImplementedError

    def verify(self, report: Report) -> list[Damage]:
        """Re-hashes every blob in use."""
        raise NotImplementedError

    def clean(self) -> int:
        """Removes what no fetch will resume and blobs without a name. Returns the bytes freed."""
        raise NotImplementedError

    def _blob(self, sha256: str) -> Path:
        return self.root / "blobs" / f"sha256-{sha256}"

    def _manifest(self, name: str) -> Path:
        return self.root / "manifests" / f"{safe_name(name)}.json"

    def _dir(self, kind: str) -> Path:
        path = self.root / kind
        path.mkdir(parents=True, exist_ok=True)
        return path


def safe_name(name: str) -> str:
    """A file name for any text: different texts give different names, also where case does not count."""
    raise NotImplementedError


def _read_manifest(path: Path) -> Entry | None:
    raise NotImplementedError
