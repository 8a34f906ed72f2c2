"""How core code tells its caller what happens, without printing: one plain line, or how far something is."""

from typing import Protocol


class Report(Protocol):
    """The `cli` prints these on stderr; tests and `--json` collect them."""

    def note(self, text: str) -> None:
        """One plain line the user should know: a fallback, a truncation, a skipped file."""

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        """`done` of `total` units of `task` (total None: unknown). done == total ends the task."""


def size_text(n_bytes: float) -> str:
    """A size in decimal units, as disks and downloads are sold: 98 MB, 1.2 GB."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if value >= 9.95 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


class Quiet:
    """A Report that keeps notes and shows nothing."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        pass
