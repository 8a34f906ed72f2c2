"""A file to be fetched, and the checks that it is what was asked for. Knows no connection."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmrun.errors import DownloadError
from llmrun.gguf.foreign import HEAD_BYTES, refuse_foreign
from llmrun.models.http import NetworkError, shown_url
from llmrun.models.names import visible
from llmrun.report import Report

if TYPE_CHECKING:
    from httpx2 import Response

SHOWN_BYTES = 100_000_000
"""Files larger than this take a moment to check, which is shown."""


class Wanted(NamedTuple):
    """`digest`: sha256 or git blob id, in hex, or "" where the source gives none.

    `final` exists only whole and checked, and may be moved on to `pointer`. Who holds `lock` fetches it.
    """

    url: str
    final: Path
    size: int
    digest: str
    lock: Path | None = None
    is_gguf: bool = False
    pointer: Path | None = None

    @property
    def name(self) -> str:
        return shown_url(self.url).rpartition("/")[2]

    def is_here(self) -> bool:
        places = (self.final, self.pointer) if self.pointer else (self.final,)
        return any(path.is_file() and path.stat().st_size == self.size for path in places)


class WrongContent(DownloadError):
    """What came is not what was asked for: nothing of it can be kept."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "try again later; if it stays so, the file at the source is damaged")


def check_length(file: Wanted, length: str) -> None:
    if length != str(file.size):
        raise WrongContent(f"{file.name} is {visible(length)} bytes long at its source, not {file.size}")


def refuse_page(response: "Response", file: Wanted) -> None:
    """Raises where a web page, or a file of another length, came in place of the whole file."""
    length = response.headers.get("Content-Length")
    if length != str(file.size) and response.headers.get("Content-Type", "").startswith("text/html"):
        raise NetworkError(
            f"{file.name} was answered with a web page",
            "a sign-in page of this network or proxy? open any page in a browser first",
            retry=False,
        )
    if length is not None:
        check_length(file, length)


def check_gguf(head: bytes, file: Wanted) -> None:
    """Raises ModelFileError where what should be a GGUF begins as something else: a web page, say."""
    if file.is_gguf and not head.startswith(b"GGUF"[: len(head)]):
        raise refuse_foreign(head[:HEAD_BYTES], file.size, file.name)


def check_content(path: Path, file: Wanted, report: Report) -> None:
    """Raises WrongContent where the bytes at `path` are not those the source named; else as `check_gguf`."""
    digest = hashlib.sha1(b"blob %d\0" % file.size) if len(file.digest) == 40 else hashlib.sha256()
    task, done = f"check {file.name}", 0
    with path.open("rb") as stream:
        check_gguf(stream.read(HEAD_BYTES), file)
        stream.seek(0)
        while file.digest and (block := stream.read(8 << 20)):
            digest.update(block)
            done += len(block)
            if file.size > SHOWN_BYTES:
                report.progress(task, done, file.size)
    if file.digest and digest.hexdigest() != file.digest:
        came = digest.hexdigest()
        raise WrongContent(f"{file.name} arrived damaged: checksum {came[:12]}..., not {file.digest[:12]}...")
