"""The threads that fetch one file into its part. Knows ranges, breaks and retries; knows no final name."""

import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llmrun.models import http
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.parts import Part, Span, SpanWriter
from llmrun.models.wanted import Wanted, WrongContent, check_gguf, check_length, refuse_page

if TYPE_CHECKING:
    from httpx2 import Client, Response

Show = Callable[[int], None]
Note = Callable[[str], None]

CONNECTIONS = 4
TRIES = 6
"""In a row, each without getting any further."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 8.0
STEP_BYTES = 64 << 10
"""What a try must bring to count as getting further."""
_SIGNATURE_ENDED = {400, 401, 403, 404, 410}


class NoRanges(Exception):
    """The server sends only whole files."""


class Download:
    """One run over one part: `ranges` fetches what is missing, `whole` everything, in one piece.

    Both block until done, call `show(done_bytes)` and `note(text)` from this thread, and raise NetworkError,
    StatusError, WrongContent, ModelFileError or DownloadError; `ranges` also NoRanges. What came is then in the part.
    """

    def __init__(self, client: "Client", file: Wanted, part: Part, headers: Mapping[str, str]) -> None:
        self.client, self.file, self.part, self.headers = client, file, part, headers
        self.guard = threading.Lock()
        self.stop = threading.Event()
        self.ranged = threading.Event()
        self.todo = deque(part.missing())
        self.done = part.have_bytes
        self.writers: list[SpanWriter] = []
        self.faults: list[BaseException] = []
        self.notes: deque[str] = deque()
        self.place = ""
        """Where the redirects led: asked directly until it says no, since its signature ends some day."""

    def ranges(self, show: Show, note: Note) -> None:
        self._run(self._work_ranges, show, note)

    def whole(self, show: Show, note: Note) -> None:
        self._run(self._work_whole, show, note)

    def _run(self, work: Callable[[], None], show: Show, note: Note) -> None:
        """One thread first; more once it is known that the server answers ranges."""
        threads = [self._start(work)]
        said: set[str] = set()
        try:
            while any(thread.is_alive() for thread in threads) and not self.faults:
                threads[-1].join(0.1)
                if self.ranged.is_set() and len(threads) == 1:
                    threads += [self._start(work) for _ in range(min(CONNECTIONS - 1, len(self.todo)))]
                while self.notes:
                    text = self.notes.popleft()
                    if text not in said:
                        note(text)
                    said.add(text)
                show(self.done)
        finally:
            # A thread that waits for a silent server is left behind; it writes no more.
            self.stop.set()
            deadline = time.monotonic() + 0.3
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            for writer in self.writers:
                writer.checkpoint()
        if self.faults:
            raise self.faults[0]

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            self.faults.append(fault)
            self.stop.set()

    def _work_ranges(self) -> None:
        with self._writer() as writer:
            tries = 0
            while not self.stop.is_set():
                with self.guard:
                    if not self.todo:
                        return
                    span = self.todo.popleft()
                fault = self._try_span(writer, span)
                if writer.at < span.end:
                    with self.guard:
                        self.todo.appendleft(Span(span.segment, writer.at, span.end))
                got = writer.at - span.start
                if got >= STEP_BYTES or (got and not fault):
                    tries = 0
                else:
                    tries += 1
                if fault or tries:
                    self._pause(fault or NetworkError(f"the server sends nothing of {self.file.name}"), tries)

    def _try_span(self, writer: SpanWriter, span: Span) -> NetworkError | StatusError | None:
        """Returns the fault where another try may help."""
        writer.begin(span)
        place = self.place
        try:
            self._fill(writer, span, place or self.file.url)
        except StatusError as fault:
            if place and fault.status in _SIGNATURE_ENDED:
                if self.place == place:
                    self.place = ""
                return NetworkError(fault.message, fault.hint)
            if not fault.retry:
                raise
            return fault
        except NetworkError as fault:
            if not fault.retry:
                raise
            return fault
        finally:
            writer.checkpoint()
        return None

    def _fill(self, writer: SpanWriter, span: Span, url: str) -> None:
        headers = dict(self.headers) | {"Range": f"bytes={span.start}-{span.end - 1}"}
        if not http.same_origin(url, self.file.url):
            headers.pop("Authorization", None)
        with http.get(self.client, url, headers) as response:
            self._check_range(response, span)
            if url == self.file.url:
                self.place = str(response.url)
            self.ranged.set()
            for data in response.iter_raw():
                data = data[: span.end - writer.at]
                if self.stop.is_set() or not data:
                    return
                self._write(writer, data)

    def _check_range(self, response: "Response", span: Span) -> None:
        if response.status_code == 200:
            refuse_page(response, self.file)
            if span.start == 0 and span.end == self.file.size:
                return
            raise NoRanges
        if response.status_code == 416:
            raise WrongContent(f"{self.file.name} ends before byte {span.start} at its source")
        if response.status_code != 206:
            raise StatusError(response)
        answer = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if not answer or int(answer[1]) != span.start:
            raise NoRanges
        if answer[2] != "*":
            check_length(self.file, answer[2])

    def _work_whole(self) -> None:
        with self._writer() as writer:
            tries = 0
            while not self.stop.is_set():
                try:
                    self._pour(writer)
                    return
                except (NetworkError, StatusError) as fault:
                    if not fault.retry:
                        raise
                    tries += 1
                    self._pause(fault, tries)

    def _pour(self, writer: SpanWriter) -> None:
        """The file from its start, over what there is of it."""
        step, size, pos = self.part.segment_bytes, self.file.size, 0
        with http.get(self.client, self.file.url, self.headers) as response:
            if response.status_code != 200:
                raise StatusError(response)
            refuse_page(response, self.file)
            self.done = 0
            for data in response.iter_raw():
                if pos + len(data) > size:
                    raise WrongContent(f"{self.file.name} is longer at its source than {size} bytes")
                while data and not self.stop.is_set():
                    if pos % step == 0:
                        writer.begin(Span(pos // step, pos, min(pos + step, size)))
                    self._write(writer, data[: writer.span.end - pos])
                    data, pos = data[writer.at - pos :], writer.at
        if not self.stop.is_set():
            check_length(self.file, str(pos))

    def _write(self, writer: SpanWriter, data: bytes) -> None:
        if writer.at == 0:
            check_gguf(data, self.file)
        writer.write(data)
        with self.guard:
            self.done += len(data)

    @contextmanager
    def _writer(self) -> Iterator[SpanWriter]:
        writer = SpanWriter(self.part)
        self.writers.append(writer)
        try:
            yield writer
        finally:
            writer.close()

    def _pause(self, fault: NetworkError | StatusError, tries: int) -> None:
        """Waits before the next try; raises `fault` where there have been enough."""
        if tries >= TRIES:
            raise fault
        if tries > 1 or isinstance(fault, StatusError):
            self.notes.append(f"{fault.message}: trying again")
        asked_s = fault.wait_s or 0.0 if isinstance(fault, StatusError) else 0.0
        self.stop.wait(max(asked_s, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**tries) * random.uniform(0.5, 1.0)))
