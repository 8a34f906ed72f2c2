"""The command line: the only place that prints, and the only place that catches errors."""

import gc
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    from llmrun.cli import app
    from llmrun.cli.terminal import streams

    gc.disable()  # start-up makes many objects and no garbage; the command turns it on again
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.set_up()
    sys.exit(app.run(arguments))
