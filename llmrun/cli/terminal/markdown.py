"""Markdown on a terminal as it is written: finished blocks are printed for good, only the last is redrawn."""

import time
from typing import Any

from llmrun.cli.output import console
from llmrun.cli.terminal.streams import shown

REDRAW_S = 0.08


class MarkdownStream:
    """Takes text as it comes. What leaves the screen upward is final; the block being written is shown as far as it
    fits and is printed whole once it ends."""

    def __init__(self) -> None:
        from markdown_it import MarkdownIt
        from rich.live import Live

        self._console = console()
        # What Markdown would swallow (HTML, link targets set apart) is text that the model wrote: it stays.
        self._parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        self._parser.disable("reference")
        self._text = ""
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        self._drawn_at = 0.0

    def write(self, text: str) -> None:
        self._text += shown(text)
        done = self._finished_lines()
        if done:
            lines = self._text.splitlines(keepends=True)
            self._print("".join(lines[:done]))
            self._text = "".join(lines[done:])
        if done or time.monotonic() - self._drawn_at > REDRAW_S:
            self._drawn_at = time.monotonic()
            self._live.update(self._tail(), refresh=True)

    def finish(self) -> None:
        """Print what is left."""
        self._live.update("", refresh=True)
        self._live.stop()
        if self._text.strip():
            self._print(self._text)
        self._text = ""

    def _finished_lines(self) -> int:
        """Lines that belong to blocks before the last one: no later text changes how those look."""
        blocks = [token.map for token in self._parser.parse(self._text) if token.level == 0 and token.map]
        return int(blocks[-1][0]) if len(blocks) > 1 else 0

    def _render(self, text: str) -> Any:
        from rich.markdown import Markdown

        rendered = Markdown("", hyperlinks=False, code_theme="ansi_dark")
        rendered.parsed = self._parser.parse(text)
        return rendered

    def _print(self, text: str) -> None:
        self._live.update("", refresh=True)
        self._live.console.print(self._render(text))
        self._live.console.print()

    def _tail(self) -> Any:
        """The last lines of the unfinished block, as many as the window holds."""
        from rich.segment import Segment, Segments

        lines = self._console.render_lines(self._render(self._text), self._console.options, pad=False)
        visible = lines[-max(1, self._console.height - 2) :]
        return Segments([segment for line in visible for segment in (*line, Segment.line())])
