"""The prompt of one run: files, then standard input, then the words of the command line."""

import codecs
import os
import sys
from collections.abc import Sequence

from llmrun import paths
from llmrun.cli.terminal.streams import is_terminal
from llmrun.errors import UsageError


def gather(files: Sequence[str], words: Sequence[str], encoding: str) -> str:
    """The parts in that order, a blank line between them, so that a document stays a reusable prefix.

    Raises UsageError for an empty prompt and for bytes that are no text in `encoding`."""
    parts = [read_file(name, encoding) for name in files]
    if not is_terminal(sys.stdin):
        parts.append(read_stdin(encoding))
    parts.append(" ".join(typed(word, "the prompt") for word in words))
    return "\n\n".join(part.rstrip("\n") if part is not parts[-1] else part for part in parts if part.strip())


def typed(text: str, what: str) -> str:
    """A word of the command line as UTF-8, whatever the locale made of its bytes. Raises UsageError."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return decode(os.fsencode(text), what, "utf-8")
    return text


def read_file(name: str, encoding: str) -> str:
    path = paths.expand(name)
    try:
        return decode(path.read_bytes(), name, encoding)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error


def read_stdin(encoding: str) -> str:
    if sys.stdin is None:  # closed by the caller, as `<&-` does
        return ""
    return decode(sys.stdin.buffer.read(), "standard input", encoding)


def decode(raw: bytes, source: str, encoding: str) -> str:
    """Text from bytes, whatever the locale. Raises UsageError with the offset of the first byte that is no text."""
    try:
        codec = codecs.lookup(encoding)
        text = raw.decode("utf-8-sig" if codec.name == "utf-8" else codec.name)
    except LookupError:
        raise UsageError(f"there is no encoding '{encoding}'") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not {encoding} text: byte 0x{raw[error.start]:02x} at offset {error.start}",
            "name its encoding with --encoding, such as latin-1",
        ) from None
    if "\0" in text:
        raise UsageError(f"{source} is binary: NUL at offset {text.index(chr(0))}", "give text")
    return text
