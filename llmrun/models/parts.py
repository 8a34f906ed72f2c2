"""A file that is being fetched, on disk: its bytes, and how many of them can be relied on after a kill.

`<name>.llmrun.incomplete` holds the bytes at their places; `<name>.have.incomplete` says how many leading
bytes of each segment are on disk, and is written only after those were flushed. Knows no network.
"""

import errno
import os
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from llmrun.errors import DownloadError
from llmrun.models.names import visible
from llmrun.report import size_text

CHECKPOINT_BYTES = 4 << 20
CHECKPOINT_S = 2.0
_HEADER = struct.Struct("<8sQQ")
_MAGIC = b"llmrun1\0"
_COUNT = struct.Struct("<Q")


class Span(NamedTuple):
    """What is still missing of one segment: bytes start to end (exclusive) of the file."""

    segment: int
    start: int
    end: int


class Part:
    """The part kept for `final`, opened, or begun where there is none. The caller holds a lock on `final`.

    It is not named like the hub client's `<etag>.incomplete`, which older releases would take for whole at its
    full length; the ending is shared, so that `hf cache prune` knows an abandoned one. Raises DownloadError
    where the disk refuses.
    """

    def __init__(self, final: Path, size: int) -> None:
        self.final, self.size = final, size
        self.path, self.journal_path = part_files(final)
        self.segment_bytes = segment_bytes(size)
        self.guard = threading.Lock()
        with writing(self.final.parent, size):
            self.have = self._read() or self._begin()
            self._journal: BinaryIO = self.journal_path.open("r+b", buffering=0)

    def _read(self) -> list[int] | None:
        """What an earlier run left, or None where that is nothing that can be relied on."""
        counts = _read_journal(self.journal_path, self.size, self.segment_bytes)
        whole = self.path.is_file() and self.path.stat().st_size == self.size
        return counts if counts is not None and whole else None

    def _begin(self) -> list[int]:
        self.final.parent.mkdir(parents=True, exist_ok=True)
        self.journal_path.unlink(missing_ok=True)
        with self.path.open("wb") as file:
            file.truncate(self.size)
            os.fsync(file.fileno())
        have = [0] * -(-self.size // self.segment_bytes)
        with self.journal_path.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, self.size, self.segment_bytes) + bytes(_COUNT.size * len(have)))
            os.fsync(file.fileno())
        return have

    @property
    def have_bytes(self) -> int:
        return sum(self.have)

    def missing(self) -> list[Span]:
        """In file order: writing stays near the front, so no file system has to fill holes with zeros."""
        spans = []
        for index, have in enumerate(self.have):
            start = index * self.segment_bytes
            end = min(start + self.segment_bytes, self.size)
            if start + have < end:
                spans.append(Span(index, start + have, end))
        return spans

    def mark(self, index: int, have: int) -> None:
        """Record that the first `have` bytes of a segment are on disk."""
        with self.guard:
            if have > self.have[index]:
                self.have[index] = have
                self._journal.seek(_HEADER.size + _COUNT.size * index)
                self._journal.write(_COUNT.pack(have))

    def close(self) -> None:
        self._journal.close()

    def discard(self) -> None:
        self.close()
        discard_part(self.final)

    def finish(self) -> None:
        """Give the whole, checked file its final name; what was there gives way."""
        self.close()
        with writing(self.final.parent, self.size):
            self.path.replace(self.final)
            flush_folder(self.final.parent)
            self.journal_path.unlink(missing_ok=True)


def segment_bytes(size: int) -> int:
    """1 to 16 MiB: a file of 64 segments and more, few enough for a small journal."""
    return min(16 << 20, max(1 << 20, 1 << (size // 64).bit_length()))


class SpanWriter:
    """One thread's way to fill spans of a part. Flushes and records every 4 MiB or 2 s; any thread may ask for it
    between."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.guard = threading.Lock()
        with writing(part.final.parent, part.size):
            self.file = part.path.open("r+b", buffering=0)
        self.span = Span(0, 0, 0)
        self.at = self.flushed = 0
        self.flushed_s = 0.0

    def begin(self, span: Span) -> None:
        with self.guard:
            self.span, self.at, self.flushed = span, span.start, span.start
            self.flushed_s = time.monotonic()
            self.file.seek(span.start)

    def write(self, data: bytes) -> None:
        """Raises DownloadError where the disk is full."""
        with self.guard, writing(self.part.final.parent, self.part.size):
            rest = memoryview(data)
            while rest:
                rest = rest[self.file.write(rest) :]
            self.at += len(data)
            waiting_s = time.monotonic() - self.flushed_s
            if self.at - self.flushed >= CHECKPOINT_BYTES or waiting_s > CHECKPOINT_S or self.at == self.span.end:
                self._flush()

    def checkpoint(self) -> None:
        with self.guard, writing(self.part.final.parent, self.part.size):
            self._flush()

    def _flush(self) -> None:
        if self.at > self.flushed and not self.file.closed:
            os.fsync(self.file.fileno())
            self.part.mark(self.span.segment, self.at - self.span.segment * self.part.segment_bytes)
            self.flushed, self.flushed_s = self.at, time.monotonic()

    def close(self) -> None:
        with self.guard, writing(self.part.final.parent, self.part.size):
            try:
                self._flush()
            finally:
                self.file.close()


def part_files(final: Path) -> tuple[Path, Path]:
    """The bytes and the journal."""
    name = final.name
    return final.with_name(f"{name}.llmrun.incomplete"), final.with_name(f"{name}.have.incomplete")


def discard_part(final: Path) -> None:
    for path in part_files(final):
        path.unlink(missing_ok=True)


def kept_bytes(final: Path, size: int) -> int:
    """Bytes of `final` that an earlier run left."""
    path, journal_path = part_files(final)
    counts = _read_journal(journal_path, size)
    return sum(counts) if counts and path.is_file() else 0


def _read_journal(path: Path, size: int, segment_bytes: int | None = None) -> list[int] | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEADER.size or (len(data) - _HEADER.size) % _COUNT.size:
        return None
    magic, its_size, its_segment = _HEADER.unpack_from(data)
    if (magic, its_size) != (_MAGIC, size) or its_segment < 1 or its_segment != (segment_bytes or its_segment):
        return None
    counts = [count for (count,) in _COUNT.iter_unpack(data[_HEADER.size :])]
    right = len(counts) == -(-size // its_segment) and all(count <= its_segment for count in counts)
    return counts if right and sum(counts) <= size else None


def check_space(folder: Path, needed: int) -> None:
    """Raises DownloadError where the disk of `folder`, which need not exist yet, has too little room."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise DownloadError(
            f"not enough disk space in {visible(str(folder))}: needs {size_text(needed)}, {size_text(free)} free",
            "free some space, or set HF_HOME (hub models) or LLMRUN_HOME (others) to a larger disk",
        )


@contextmanager
def writing(folder: Path, size: int) -> Iterator[None]:
    """Raises what goes wrong on disk, while a file of `size` bytes is made in `folder`, as DownloadError."""
    try:
        yield
    except OSError as fault:
        raise disk_error(fault, folder, size) from None


def disk_error(fault: OSError, folder: Path, size: int) -> DownloadError:
    """A write that failed, in one line."""
    where = visible(str(folder))
    if fault.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"the disk is full: {where} has no room for the rest of {size_text(size)}",
            "free some space and pull again: what was fetched is kept",
        )
    if fault.errno == errno.EFBIG:
        return DownloadError(f"{where} cannot hold a file of {size_text(size)}", "choose another disk")
    if fault.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DownloadError(f"{where} cannot be written: {fault.strerror}", "check who owns it")
    return DownloadError(f"writing to {where} failed: {fault.strerror or fault}", "check the disk")


def flush_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system has a call for it."""
    if os.name == "nt":
        return
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
