"""Where the parts of an answer go: the answer to stdout, the reasoning beside it on stderr."""

import sys
from typing import TYPE_CHECKING

from llmrun.chat.reasoning import ReasoningSplitter
from llmrun.cli.terminal import streams
from llmrun.errors import UsageError

if TYPE_CHECKING:
    from llmrun.cli.terminal.markdown import MarkdownStream

MODES = ("show", "hide", "only")


class Display:
    """Takes a model's text as it comes. `mode` says what becomes of reasoning: shown on stderr (dimmed on a
    terminal), hidden, or alone on stdout. With `live` false nothing is written before `finish`; `silent` writes
    nothing at all; `markdown` renders the answer where the terminal can."""

    def __init__(
        self, splitter: ReasoningSplitter | None, mode: str, *, live: bool, silent: bool, markdown: bool = False
    ) -> None:
        if mode not in MODES:
            raise UsageError(f"--reasoning {mode} is none of {', '.join(MODES)}")
        self._splitter = splitter
        self._mode = mode
        self._live = live and not silent
        self._silent = silent
        self._out = streams.Answer()
        self._markdown: MarkdownStream | None = None
        if markdown and self._live and streams.has_colour(sys.stdout):
            from llmrun.cli.terminal import markdown as rendering

            self._markdown = rendering.MarkdownStream()
        self._answer: list[str] = []
        self._reasoning: list[str] = []
        self._thinking = False

    @property
    def answer(self) -> str:
        return "".join(self._answer)

    @property
    def control_tokens(self) -> frozenset[str]:
        """Control tokens that must come in as text, since they mark reasoning."""
        return self._splitter.tokens if self._splitter is not None else frozenset()

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def feed(self, text: str) -> None:
        """Raises BrokenPipeError when stdout's reader has gone."""
        if self._splitter is None:
            self._give("answer", text)
        else:
            for piece in self._splitter.feed(text):
                self._give(piece.kind, piece.text)

    def finish(self) -> None:
        """Give out what was held back, and end the line."""
        if self._splitter is not None:
            for piece in self._splitter.finish():
                self._give(piece.kind, piece.text)
        if not self._live and not self._silent:
            if self._mode == "show":
                self._think(self.reasoning)
            self._stop_thinking()
            self._out.write(self.reasoning if self._mode == "only" else self.answer)
        self._stop_thinking()
        if self._markdown is not None:
            self._markdown.finish()
        if not self._silent:
            self._out.end()

    def _give(self, kind: str, text: str) -> None:
        (self._answer if kind == "answer" else self._reasoning).append(text)
        if not self._live:
            return
        if kind == "reasoning" and self._mode == "show":
            self._think(text)
        elif kind == ("reasoning" if self._mode == "only" else "answer"):
            self._stop_thinking()
            if self._markdown is not None:
                self._markdown.write(text)
            else:
                self._out.write(text)

    def _think(self, text: str) -> None:
        if text:
            self._thinking = True
            sys.stderr.write(streams.dim(streams.shown(text), sys.stderr))
            sys.stderr.flush()

    def _stop_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            sys.stderr.write("\n\n")
            sys.stderr.flush()
