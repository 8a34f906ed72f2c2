"""A result file appears whole or not at all: a temporary name beside the target, flushed, then renamed."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from llmrun.errors import QuantizeError, UsageError
from llmrun.report import size_text


def refuse_target(target: Path, sources: Sequence[Path], *, force: bool) -> None:
    """Raises UsageError where `target` is one of the sources (through any link), a folder, in no folder, or there
    already without `force`."""
    for source in sources:
        if target.exists() and source.exists() and target.samefile(source):
            raise UsageError(
                f"{target} is the input itself: writing it would destroy {source}", "give another output file"
            )
    if target.is_dir():
        raise UsageError(f"{target} is a folder", "name the file to write")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no folder", f"mkdir -p {target.parent}")
    if os.path.lexists(target) and not force:
        raise UsageError(f"{target} exists already", "--force replaces it")


def check_space(folder: Path, n_bytes: int) -> None:
    """Raises QuantizeError where the disk has no room for a file of `n_bytes`."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise QuantizeError(
            f"the result takes {size_text(n_bytes)}, {folder} has {size_text(free)} free",
            "free some space, or write to another disk",
        )


def temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.part")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields a temporary path to write; moves it to `target` at the end, or removes it on any exception."""
    part = temporary_name(target)
    try:
        yield part
        place(part, target)
    finally:
        part.unlink(missing_ok=True)


def flush_begun(parts: Sequence[Path]) -> None:
    """Send to the disk what is written of these so far, while more is computed: little is left for the end then."""
    for part in parts:
        with suppress(OSError):
            _flush(part)


def place(part: Path, target: Path) -> None:
    """Flush `part` to the disk and give it its final name."""
    _flush(part)
    part.replace(target)


def _flush(part: Path) -> None:
    with part.open("r+b") as file:
        os.fsync(file.fileno())
