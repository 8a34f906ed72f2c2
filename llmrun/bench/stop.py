"""Ctrl-C during a measurement: seen between tokens, and inside a prefill through llama.cpp's abort callback."""

from llmrun.engine.engine import Engine
from llmrun.errors import Interrupted


class Stop:
    """Asked from a signal handler; whoever measures calls it between tokens."""

    def __init__(self) -> None:
        self.asked = False
        self.engine: Engine | None = None  # the one that is at work now

    def ask(self) -> None:
        self.asked = True
        if self.engine is not None:
            self.engine.interrupt()

    def __call__(self) -> bool:
        return self.asked

    def check(self) -> None:
        """Raises Interrupted where it was asked for."""
        if self.asked:
            raise Interrupted("interrupted")
