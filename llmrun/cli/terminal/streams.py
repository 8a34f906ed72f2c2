"""The process's own streams: encodings, closed pipes, and what may be shown on a terminal."""

import os
import re
import sys
from typing import TextIO

# Everything that is no printable text, but for newline and tab: C0, DEL, C1, and the bidirectional overrides.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def set_up() -> None:
    """Model text is UTF-8 whatever the locale says; the tool's own text falls back where it cannot be shown."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace", newline="\n")


def shown(text: str) -> str:
    """Text from outside (models, servers, files) for a terminal: control characters are shown, not obeyed."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def utf8(text: str) -> bytes:
    """For a file or pipe. A path that a locale without UTF-8 could not decode comes out as it is on disk."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "replace")
    return data.decode("utf-8", "replace").encode("utf-8")


def is_terminal(stream: TextIO) -> bool:
    return stream is not None and stream.isatty()


def has_colour(stream: TextIO) -> bool:
    """Whether escape codes are welcome: a terminal that is not dumb, and no NO_COLOR."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: TextIO) -> str:
    return f"\x1b[2m{text}\x1b[0m" if has_colour(stream) else text


def say(text: str) -> None:
    """One line on stderr."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        abandon(sys.stderr)


def abandon(stream: TextIO) -> None:
    """The reader has gone: let what is still buffered vanish without the interpreter complaining at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    finally:
        os.close(null)


class Answer:
    """stdout as the place for model text: flushed piece by piece, UTF-8 bytes off a terminal."""

    def __init__(self) -> None:
        self.terminal = is_terminal(sys.stdout)
        self._ends_line = True

    def write(self, text: str) -> None:
        """Raises BrokenPipeError when the reader has gone."""
        if not text:
            return
        self._ends_line = text.endswith("\n")
        if self.terminal:
            sys.stdout.write(shown(text))
            sys.stdout.flush()
        else:
            data = memoryview(text.encode("utf-8", "replace"))
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def end(self) -> None:
        """Finish the line on a terminal, so that what follows starts on one of its own. Elsewhere stdout stays the
        text alone: the line ends on stderr where both go to one file (`2>&1`)."""
        if self._ends_line:
            return
        if self.terminal:
            self.write("\n")
        elif _one_file(sys.stdout, sys.stderr):
            say("")


def _one_file(*streams: TextIO) -> bool:
    try:
        first, second = (os.fstat(stream.fileno()) for stream in streams)
    except (OSError, ValueError, AttributeError):  # closed, or none
        return False
    return os.path.samestat(first, second)
