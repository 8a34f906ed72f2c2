"""From token bytes to text that can be shown: whole characters only, stop strings held back."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of successive tokens into text.

    A character appears once its last byte has come; bytes that form no character, and an unfinished character at
    the end, are dropped, so what was streamed and the whole text are the same. Text that could be the start of a
    stop string is held back until it is clear; `stopped` is set once one is found, and nothing of it is given out.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """The text that has become certain with this piece."""
        text = self._decoder.decode(piece)
        if not self._stops:
            return text
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_partial(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when no more will come."""
        held, self._held = self._held, ""
        return held


def _partial(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
