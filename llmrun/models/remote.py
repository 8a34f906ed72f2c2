"""Reads pieces of a file that stays where it is: enough for its header."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from llmrun.gguf.foreign import HEAD_BYTES
from llmrun.models import http
from llmrun.models.http import NetworkError, StatusError

if TYPE_CHECKING:
    from httpx2 import Client, Response

MAX_SKIP_BYTES = 64 << 20


class Facts(NamedTuple):
    """What a server says about a file. `size_bytes` is None where it does not say."""

    size_bytes: int | None
    etag: str
    modified: str
    disposition: str
    head: bytes


class RemoteReader:
    """`read(offset, n)` over range requests, each tried a few times. `fetched_bytes` is what came so far."""

    def __init__(self, client: "Client", url: str, headers: Mapping[str, str]) -> None:
        self.client, self.url, self.headers = client, url, headers
        self.fetched_bytes = 0

    def read(self, offset: int, n: int) -> bytes:
        """Up to n bytes from offset, fewer only at the end of the file. Raises NetworkError, StatusError."""
        return self._ask(offset, n)[0] if n > 0 else b""

    def facts(self) -> Facts:
        """One request, for the first bytes of the file."""
        head, response = self._ask(0, HEAD_BYTES)
        whole = "" if response.status_code == 206 else response.headers.get("Content-Length", "")
        size = response.headers.get("Content-Range", f"/{whole}").rpartition("/")[2]
        return Facts(
            int(size) if size.isdigit() else None,
            response.headers.get("ETag", ""),
            response.headers.get("Last-Modified", ""),
            response.headers.get("Content-Disposition", ""),
            head,
        )

    def _ask(self, offset: int, n: int) -> "tuple[bytes, Response]":
        return http.retried(lambda: self._try(offset, n))

    def _try(self, offset: int, n: int) -> "tuple[bytes, Response]":
        headers = dict(self.headers) | {"Range": f"bytes={offset}-{offset + n - 1}"}
        with http.get(self.client, self.url, headers) as response:
            if response.status_code == 416:
                return b"", response
            if response.status_code not in (200, 206):
                raise StatusError(response)
            skip = offset if response.status_code == 200 else 0
            if not skip and offset and not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                raise NetworkError("the server answers with another range than asked for", "try again later")
            if skip > MAX_SKIP_BYTES:
                raise NetworkError("the server sends whole files only", "download the file first", retry=False)
            data = bytearray()
            for piece in response.iter_raw():
                data += piece
                self.fetched_bytes += len(piece)
                if len(data) >= skip + n:
                    break
            return bytes(data[skip : skip + n]), response


@contextmanager
def open_remote(
    url: str, headers: Mapping[str, str] | None = None, stall_s: float = http.STALL_S
) -> Iterator[RemoteReader]:
    with http.open_client(stall_s) as client:
        yield RemoteReader(client, url, headers or {})
