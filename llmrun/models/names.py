"""Names that come from outside: checked before one becomes a path, escaped before one is shown."""

from pathlib import PurePosixPath

from llmrun.errors import DownloadError

# Control, format (bidirectional, zero width), line separators, unassigned, private use, lone surrogates.
_HIDDEN = {"Cc", "Cf", "Zl", "Zp", "Cn", "Co", "Cs"}


def visible(text: str) -> str:
    """`text` with every character that a terminal would obey, or not show, written as its escape."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    return "".join(
        char.encode("unicode_escape").decode("ascii") if unicodedata.category(char) in _HIDDEN else char
        for char in text
    )


def checked_name(name: str) -> PurePosixPath:
    """A file name given by a server or a wheel, as a relative path that stays below where it is joined.

    Raises DownloadError for absolute names, `..`, drive letters, backslashes and hidden characters.
    """
    path = PurePosixPath(name)
    bad = (
        not name
        or len(name.encode("utf-8", "replace")) > 1024
        or path.is_absolute()
        or any(part in ("..", ".", "") for part in name.split("/"))
        or any(char in '\\:*?"<>|' for char in name)
        or visible(name) != name
    )
    if bad:
        raise DownloadError(
            f"the source names a file '{visible(name[:200])}', which is not a safe file name",
            "nothing was written; the source is damaged or hostile",
        )
    return path
