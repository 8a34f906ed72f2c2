"""llmrun's own models: blobs named by their sha256, and one small manifest a name. Knows no source.

blobs/sha256-<hex>       whole and verified, never written in place
manifests/<name>.json    what a name stands for; several may share a blob
work/<name>/             downloads under way, kept for resuming, never listed
locks/                   one download of one model at a time
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from llmrun import paths
from llmrun.errors import NotFoundError, StoreError
from llmrun.models.manifest import Entry, Meta, StoredFile, read_manifest, safe_name, write_manifest
from llmrun.models.names import visible
from llmrun.report import Report

STALE_WORK_S = 14 * 24 * 3600
CHUNK_BYTES = 1 << 20


class Removed(NamedTuple):
    """`paths` are the blobs that went; `kept_for` the other names that still use some of the data."""

    entry: Entry
    paths: tuple[Path, ...]
    freed_bytes: int
    kept_for: tuple[str, ...]


class Damage(NamedTuple):
    """A blob that is not what its name says. It has been set aside, so the next pull fetches it again."""

    name: str
    file: str
    reason: str


class Incoming(NamedTuple):
    """A whole, verified file in the work directory of its source, to be moved in."""

    path: Path
    name: str
    sha256: str


class Store:
    """Several processes may call any method at once; writers hold the lock that their contract names."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else paths.cache_dir() / "store"

    # Reading: no lock, since manifests and blobs only ever appear whole.

    def find(self, name: str) -> Entry | None:
        return read_manifest(self._manifest(name))

    def find_source(self, source: str) -> Entry | None:
        """An entry under any name whose bytes came from `source`."""
        return next((entry for entry in self.entries() if entry.source == source), None)

    def entries(self) -> list[Entry]:
        """By name. A manifest that cannot be read is passed over."""
        found = (read_manifest(path) for path in (self.root / "manifests").glob("*.json"))
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
    def lock(self, source: str, report: Report) -> Iterator[None]:
        """Held around the fetch of a reference: two pulls of it, under whatever names, make one download."""
        from filelock import FileLock, Timeout

        lock = FileLock(self._dir("locks") / f"{safe_name(source)}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report.note(f"another llmrun is fetching {visible(source)}: waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def work_dir(self, source: str) -> Path:
        """Where a fetch that holds `lock(source)` may keep parts between runs. `add` removes it."""
        path = self._dir("work") / safe_name(source)
        with _storing(path):
            path.mkdir(exist_ok=True)
        return path

    def add(self, name: str, source: str, files: Sequence[Incoming], meta: Meta | None = None) -> Entry:
        """Moves files from `work_dir(source)` in and names them. Their hashes have been checked by the caller,
        who holds `lock(source)`."""
        stored = tuple(StoredFile(file.name, file.sha256, file.path.stat().st_size) for file in files)
        entry = Entry(name, source, stored, time.time(), meta or {})
        import shutil

        with self._changing(), _storing(self.root):
            self._dir("blobs")
            self._dir("manifests")
            for file, new in zip(files, stored, strict=True):
                with file.path.open("rb+") as data:
                    os.fsync(data.fileno())
                file.path.replace(self._blob(new.sha256))
            write_manifest(self._manifest(entry.name), entry)
            shutil.rmtree(self.root / "work" / safe_name(source), ignore_errors=True)
            self._clean()
        return entry

    def link(self, name: str, entry: Entry) -> Entry:
        """A further name for what `entry` has."""
        entry = entry._replace(name=name, created=time.time())
        with self._changing(), _storing(self.root):
            write_manifest(self._manifest(entry.name), entry)
        return entry

    def remove(self, name: str) -> Removed:
        """Forgets the name, and its blobs where no other name uses them. Raises NotFoundError."""
        with self._changing(), _storing(self.root):
            removed = self.what_goes(name)
            self._manifest(name).unlink()
            freed_bytes = sum(_unlink(path) for path in removed.paths)
        return removed._replace(freed_bytes=freed_bytes)

    def what_goes(self, name: str) -> Removed:
        """What `remove` would do. Raises NotFoundError."""
        entry = self.find(name)
        if entry is None:
            raise NotFoundError(f"no model called {visible(name)} is in the store", "llmrun list shows them")
        others = [other for other in self.entries() if other.name != name]
        used = {file.sha256 for other in others for file in other.files}
        own = {file.sha256 for file in entry.files}
        paths = tuple(path for sha256 in own - used if (path := self._blob(sha256)).exists())
        kept_for = (other.name for other in others if own & {file.sha256 for file in other.files})
        return Removed(entry, paths, sum(path.stat().st_size for path in paths), tuple(kept_for))

    def verify(self, report: Report) -> list[Damage]:
        """Re-hashes every blob in use. What is damaged is set aside, so the next pull fetches it again."""
        entries = self.entries()
        blobs = {file.sha256: file for entry in entries for file in entry.files}
        reasons = {sha256: self._check(file, report) for sha256, file in blobs.items()}
        return [
            Damage(entry.name, file.name, reason)
            for entry in entries
            for file in entry.files
            if (reason := reasons[file.sha256])
        ]

    def _check(self, file: StoredFile, report: Report) -> str | None:
        path = self._blob(file.sha256)
        try:
            if path.stat().st_size != file.size_bytes:
                reason = f"has {path.stat().st_size} bytes instead of {file.size_bytes}"
            elif hash_file(path, f"checking {visible(file.name)}", report) != file.sha256:
                reason = "does not match its checksum"
            else:
                return None
        except FileNotFoundError:
            return "is missing"
        with self._changing(), _storing(path):
            path.replace(path.with_suffix(".damaged"))
        return reason

    def _clean(self) -> None:
        """Removes what a crash left, blobs set aside, and parts that no fetch has resumed for long."""
        import shutil

        used = {f"sha256-{file.sha256}" for entry in self.entries() for file in entry.files}
        for path in (self.root / "blobs").iterdir():
            if path.name not in used:
                _unlink(path)
        for path in (self.root / "manifests").glob("*.tmp"):
            _unlink(path)
        work = self.root / "work"
        for path in work.iterdir() if work.is_dir() else ():
            if time.time() - path.stat().st_mtime > STALE_WORK_S:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Held for the moment in which manifests and blobs change together."""
        from filelock import FileLock

        with FileLock(self._dir("locks") / "store.lock"):
            yield

    def _blob(self, sha256: str) -> Path:
        return self.root / "blobs" / f"sha256-{sha256}"

    def _manifest(self, name: str) -> Path:
        return self.root / "manifests" / f"{safe_name(name)}.json"

    def _dir(self, kind: str) -> Path:
        path = self.root / kind
        with _storing(path):
            path.mkdir(parents=True, exist_ok=True)
        return path


def hash_file(path: Path, task: str, report: Report) -> str:
    """The sha256 of a whole file, in hex, with progress."""
    import hashlib

    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report.progress(task, done, total)
    return digest.hexdigest()


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot write the model store at {path}: {error.strerror or error}",
            "free the space or fix the rights there, or set LLMRUN_HOME to another folder",
        ) from error


def _unlink(path: Path) -> int:
    """The bytes freed."""
    with suppress(FileNotFoundError):
        size_bytes = path.stat().st_size
        path.unlink()
        return size_bytes
    return 0
