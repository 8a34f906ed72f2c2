"""Ctrl-C during a measurement: seen between tokens, and inside a prefill through llama.cpp's abort callback."""

from collections.abc import Iterator
from contextlib import contextmanager

from llmrun.engine.engine import Engine
from llmrun.errors import Interrupted


class Stop:
    """Asked from a signal handler; whoever measures calls it between tokens."""

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False
        self.engine: Engine | None = None  # the one that is at work now

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While nothing asks (a model loads, a process starts), Ctrl-C raises KeyboardInterrupt where it falls."""
        self.check()
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def ask(self) -> None:
        self.asked = True
        if self._waiting:
            raise KeyboardInterrupt
        if self.engine is not None:
            self.engine.interrupt()

    def __call__(self) -> bool:
        return self.asked

    def check(self) -> None:
        """Raises Interrupted where it was asked for."""
        if self.asked:
            raise Interrupted("interrupted")
