"""Keys typed while an answer is written are not shown: their echo would land in the middle of it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from llmrun.cli.terminal.streams import is_terminal


@contextmanager
def no_echo() -> Iterator[None]:
    """Turn the terminal's echo off for a while; where there is no such thing, do nothing."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    if not is_terminal(sys.stdin):
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
