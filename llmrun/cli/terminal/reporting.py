"""What core code reports, on stderr: notes as plain lines, and a bar on a terminal for what lasts over a second."""

import sys
import time
from typing import Any

from llmrun.cli.terminal import streams

PATIENCE_S = 0.8  # what is over sooner needs no bar


class StderrReport:
    """A Report for people. Keeps the notes for `--json`; may be called from several threads in turn."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._since: dict[str, float] = {}

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            streams.say(streams.shown(text))

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        if not streams.is_terminal(sys.stderr):
            return
        since = self._since.setdefault(task, time.monotonic())
        if total is not None and done >= total:
            self._end(task)
        elif task in self._tasks:
            self._bars.update(self._tasks[task], completed=done, total=total)
        elif time.monotonic() - since > PATIENCE_S:
            self._begin(task, done, total, unit)

    def _begin(self, task: str, done: int, total: int | None, unit: str) -> None:
        from llmrun.cli.output import progress_bars

        if self._bars is None:
            self._bars = progress_bars()
            self._bars.start()
        self._tasks[task] = self._bars.add_task(task, completed=done, total=total, unit=unit)

    def _end(self, task: str) -> None:
        self._since.pop(task, None)
        if task in self._tasks:
            self._bars.remove_task(self._tasks.pop(task))
        if self._bars is not None and not self._tasks:
            self._bars.stop()
            self._bars = None

    def close(self) -> None:
        """Take every bar off the screen."""
        for task in list(self._tasks):
            self._end(task)
