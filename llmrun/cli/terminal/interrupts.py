"""Ctrl-C while an answer is made: the first asks the engine to stop, the second leaves."""

import signal
import sys
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

    before, hook = signal.signal(signal.SIGINT, handle), sys.unraisablehook

    def complain(fault: "sys.UnraisableHookArgs") -> None:
        # What is raised as a callback of the library begins cannot pass through the library: ctypes shows it.
        if not isinstance(fault.exc_value, KeyboardInterrupt):
            hook(fault)

    sys.unraisablehook = complain
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)
