"""Remembers which model files passed the check, so that the next start does not walk their vocabularies again: with
100,000 strings that takes longer than all the rest of a header.

One small record for each model in the cache, under the file's device and inode. It holds while size, time of the last
write and time of the last change are those that were read; no program sets the last of them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from llmrun import __version__, gguf, paths
from llmrun.errors import ModelFileError
from llmrun.gguf.check import check_model
from llmrun.gguf.header import Header, open_header
from llmrun.gguf.values import StringArray
from llmrun.models.manifest import write_whole

_LONG = 1000  # strings; shorter arrays are walked as quickly as they are remembered
_MOST_RECORDS = 256

Spans = Mapping[str, int]
"""Bytes that each long array of strings takes, by its key."""


def checked_headers(files: Sequence[Path]) -> tuple[Header, ...]:
    """The headers of a model's parts, in order. Raises ModelFileError for what llama.cpp could not be given, and
    NotFoundError."""
    stamp = _stamp(files)
    spans = _recall(files[0], stamp)
    if spans is not None:
        with suppress(ModelFileError):
            return tuple(open_header(file, of_part) for file, of_part in zip(files, spans, strict=True))
    headers = tuple(open_header(file) for file in files)
    check_model(*headers)
    if stamp and stamp == _stamp(files):
        _remember(files[0], stamp, [_spans(header) for header in headers])
    return headers


def _stamp(files: Sequence[Path]) -> list[int | str]:
    """Changes when a file does, or the rules it was checked by. Empty for what cannot be remembered."""
    rules = max(entry.stat().st_mtime_ns for entry in os.scandir(gguf.__path__[0]) if entry.name.endswith(".py"))
    stamp: list[int | str] = [__version__, rules]
    try:
        for file in files:
            status = file.stat()
            stamp += [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    except OSError:
        return []
    return stamp


def _spans(header: Header) -> Spans:
    arrays = ((key, value) for key, value in header.metadata.items() if isinstance(value, StringArray))
    return {key: len(array.raw) for key, array in arrays if len(array) > _LONG}


def _record(file: Path) -> Path:
    status = file.stat()
    return paths.cache_dir() / "accepted" / f"{status.st_dev:x}-{status.st_ino:x}.json"


def _recall(file: Path, stamp: list[int | str]) -> list[Spans] | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        record = json.loads(_record(file).read_bytes())
        if stamp and record["stamp"] == stamp:
            return [{str(key): int(n) for key, n in spans.items()} for spans in record["spans"]]
    return None


def _remember(file: Path, stamp: list[int | str], spans: list[Spans]) -> None:
    with suppress(OSError):
        record = _record(file)
        record.parent.mkdir(parents=True, exist_ok=True)
        write_whole(record, json.dumps({"stamp": stamp, "spans": spans}).encode("utf-8"))
        records = sorted(record.parent.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for old in records[:-_MOST_RECORDS]:
            old.unlink(missing_ok=True)
