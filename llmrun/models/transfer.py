"""Fetches files over HTTP, going on across breaks, runs and kills; each is checked before it counts.

Knows no hub: addresses, sizes and checksums come from the caller.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llmrun.errors import Interrupted, ModelFileError
from llmrun.models import http
from llmrun.models.download import Download, NoRanges
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.parts import Part, check_space, discard_part, disk_error, kept_bytes
from llmrun.models.wanted import Wanted, WrongContent, check_content
from llmrun.report import Report, size_text

if TYPE_CHECKING:
    from httpx2 import Client


def fetch(
    wanted: Sequence[Wanted],
    task: str,
    report: Report,
    headers: Mapping[str, str] | None = None,
    stall_s: float = http.STALL_S,
) -> None:
    """Makes every file be at its `final` place. `task` names the one progress display over all of them.

    Raises DownloadError (StatusError where the server refuses), ModelFileError for what is no GGUF though it
    should be, or Interrupted after Ctrl-C; what was fetched
    is kept for the next run, and nothing half-done has a final name.
    """
    missing = [file for file in wanted if not file.is_here()]
    if not missing:
        return
    _check_space(missing)
    progress = _Progress(task, sum(file.size for file in missing), report)
    with http.open_client(stall_s) as client:
        for file in missing:
            with locked(file.lock, task, report):
                if not file.is_here():
                    _fetch_checked(client, file, headers or {}, progress)
                discard_part(file.final)
            progress.finish(file.size)


def _check_space(missing: Sequence[Wanted]) -> None:
    for folder in {file.final.parent for file in missing}:
        here = [file for file in missing if file.final.parent == folder]
        check_space(folder, sum(file.size - kept_bytes(file.final, file.size) for file in here))


class _Progress:
    """One display over all files."""

    def __init__(self, task: str, total: int, report: Report) -> None:
        self.task, self.total, self.report = task, total, report
        self.before = 0

    def show(self, done: int) -> None:
        self.report.progress(self.task, max(0, min(self.before + done, self.total - 1)), self.total)

    def finish(self, size: int) -> None:
        self.before += size
        self.report.progress(self.task, self.before, self.total)


def _fetch_checked(client: "Client", file: Wanted, headers: Mapping[str, str], progress: _Progress) -> None:
    """What arrives wrong is thrown away and fetched once more, in one piece: caches break with ranges."""
    for in_one_piece in (False, True):
        part = Part(file.final, file.size)
        try:
            _fill(partial(Download, client, file, part, headers), in_one_piece, progress)
            check_content(part.path, file, progress.report)
            part.finish()
            return
        except WrongContent as fault:
            part.discard()
            if in_one_piece:
                raise
            progress.report.note(f"{fault.message}; fetching it again")
        except ModelFileError:
            part.discard()
            raise
        except KeyboardInterrupt:
            done = f"{size_text(part.have_bytes)} of {size_text(file.size)}"
            message = f"stopped: {done} of {file.name} are kept"
            raise Interrupted(message, "the same command goes on from there") from None
        except (NetworkError, StatusError) as fault:
            if part.have_bytes:
                fault.hint += f"; {size_text(part.have_bytes)} of {size_text(file.size)} are kept"
            raise
        finally:
            part.close()
            if not part.have_bytes:
                discard_part(file.final)


def _fill(job: Callable[[], Download], in_one_piece: bool, progress: _Progress) -> None:
    show, note = progress.show, progress.report.note
    if not in_one_piece:
        try:
            job().ranges(show, note)
            return
        except NoRanges:
            note("the server sends whole files only: one connection, and an interrupted file starts again")
    job().whole(show, note)


@contextmanager
def locked(path: Path | None, what: str, report: Report) -> Iterator[None]:
    """One process at a time; the others wait, and then find what they wanted. None: the caller saw to that."""
    from filelock import FileLock, Timeout

    if path is None:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, mode=0o664)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report.note(f"another process is fetching {what}: waiting for it")
            lock.acquire()
    except OSError as fault:
        raise disk_error(fault, path.parent, 0) from None
    try:
        yield
    finally:
        lock.release()
