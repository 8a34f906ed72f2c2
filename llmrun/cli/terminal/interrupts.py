"""Ctrl-C while an answer is made: the first asks the engine to stop, the second leaves."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first Ctrl-C (or SIGTERM's kin, as Python delivers them); raise on the second."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(_signal: int, _frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
