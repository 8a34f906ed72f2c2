"""The command line: the only place that prints, and the only place that catches errors."""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    gc.disable()  # start-up makes many objects and no garbage; the command turns it on again
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"] and len(arguments) > 2 and not arguments[1].startswith("-"):
        _leave(_with_a_start(arguments))
    sys.exit(_run(arguments))


def _with_a_start(arguments: list[str]) -> int:
    from llmrun.cli.answering import ahead

    ahead.begin(arguments)
    try:
        return _run(arguments)
    finally:
        ahead.end()


def _leave(status: int) -> NoReturn:
    """End at once: taking interpreter and model apart, which the system does better, takes 50 ms of every answer."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its faults were dealt with where it was written
            stream.flush()
    os._exit(status)


def _run(arguments: list[str]) -> int:
    from llmrun.cli import app
    from llmrun.cli.terminal import streams

    streams.set_up()
    return app.run(arguments)
