"""Which test is running, as one line on a terminal that nothing redraws: a bar's thread would take its time from
the measurement."""

import sys

from llmrun.cli.terminal import streams
from llmrun.cli.terminal.reporting import StderrReport

ERASE = "\r\x1b[K"


class BenchReport(StderrReport):
    """Shows tests and settings in that line, and everything else as other commands do."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""

    def note(self, text: str) -> None:
        self._show("")
        super().note(text)

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        if unit not in ("tests", "settings"):
            if not self._line:
                super().progress(task, done, total, unit)
        elif streams.has_colour(sys.stderr):
            over = total is not None and done >= total
            self._show("" if over else streams.shown(f"{task} ({done + 1} of {total} {unit}) ..."))

    def close(self) -> None:
        self._show("")
        super().close()

    def _show(self, line: str) -> None:
        if line != self._line:
            self._line = line
            sys.stderr.write(ERASE + line)
            sys.stderr.flush()
