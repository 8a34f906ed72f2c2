"""The GGUF headers of a model, read where it is: on this machine, or at its source by range requests."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from llmrun.errors import DownloadError, ModelFileError, NotFoundError
from llmrun.gguf.header import Header, open_header, read_header
from llmrun.models.names import visible
from llmrun.models.resolve import Resolved, first_to_deliver, source_of
from llmrun.models.sources import RemoteFile, Want
from llmrun.report import Report


class Headers(NamedTuple):
    """In part order. `is_here`: read from this machine. `source`: the reference that names exactly these files."""

    parts: tuple[Header, ...]
    is_here: bool
    source: str


def read_headers(resolved: Resolved, report: Report, fit_bytes: int | None = None) -> Headers:
    """Downloads no weights. Raises NotFoundError and DownloadError as the source does, ModelFileError for files
    that are no GGUF, and for a checkpoint, which has no header yet."""
    if resolved.paths:
        if resolved.kind == "checkpoint":
            raise _no_header(resolved.name)
        return Headers(tuple(open_header(path) for path in resolved.paths), True, resolved.source)

    def ask(want: Want) -> Headers | None:
        return _remote(want._replace(fit_bytes=fit_bytes), report)

    headers = first_to_deliver(resolved.wants, ask, report)
    if headers is None:
        raise _no_header(resolved.name)
    return headers


def other_quants(resolved: Resolved, report: Report) -> tuple[tuple[str, int], ...]:
    """(type, bytes) of every quantization that the first source offers, where it offers several; asks it."""
    want = resolved.wants[0]
    ask: Callable[[Want, Report], tuple[tuple[str, int], ...]] | None = getattr(source_of(want.ref), "quants", None)
    return ask(want, report) if ask is not None else ()


def _remote(want: Want, report: Report) -> Headers | None:
    """None: what the source has is a checkpoint."""
    source = source_of(want.ref)
    reader: Callable[[RemoteFile], AbstractContextManager[Any]] | None = getattr(source, "reader", None)
    if reader is None:
        raise NotFoundError(
            f"{visible(want.name)} is not here, and its source gives no part of a file", f"llmrun pull {want.name}"
        )
    offer = source.offer(want, report)
    if offer.kind == "checkpoint":
        return None
    parts = []
    for file in offer.files:
        with reader(file) as remote:
            size_bytes = file.size_bytes or remote.facts().size_bytes
            if size_bytes is None:
                raise DownloadError(f"the source does not say how long {visible(file.name)} is", "pull it first")
            parts.append(read_header(remote.read, size_bytes, visible(file.name)))
    return Headers(tuple(parts), False, offer.source)


def _no_header(name: str) -> ModelFileError:
    return ModelFileError(
        f"{visible(name)} is a checkpoint, which has to be converted first", f"llmrun convert {visible(name)}"
    )
