"""Tables, progress bars and JSON: the only module that knows rich, and the one place where results become JSON."""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrun.cli.terminal import streams
from llmrun.report import size_text

WIDE = 10_000  # columns: no line is longer


def jsonable(value: Any) -> Any:
    """Plain JSON data of a result: dataclasses and named tuples become objects, paths text, NaN and inf null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: jsonable(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): jsonable(part) for key, part in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [jsonable(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value


def json_line(value: Any) -> str:
    """One line of valid JSON, whatever is in `value`."""
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)


def print_json(value: Any, indent: int | None = 2) -> None:
    """The result object on stdout, as UTF-8 whatever the locale; without `indent` on one line."""
    text = json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
    sys.stdout.buffer.write(streams.utf8(text))
    sys.stdout.buffer.flush()


def console(stream: Any = None) -> Any:
    """A rich console that writes no escape codes where none are welcome, and ASCII where nothing else fits."""
    from rich.console import Console

    stream = stream or sys.stdout
    colour = streams.has_colour(stream)
    width = None if streams.is_terminal(stream) else WIDE
    return Console(
        file=stream,
        force_terminal=colour,
        no_color=not colour,
        color_system="auto" if colour else None,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        safe_box=True,
        legacy_windows=False,
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> None:
    """A table without lines, one row a line; `right` names the columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column.upper(), justify="right" if column in right else "left", no_wrap=True, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(streams.shown(str(cell))) for cell in row))
    target = console()
    target.width = WIDE  # a terminal wraps a long line; rich would cut its cells short
    with target.capture() as text:
        target.print(table, crop=False, no_wrap=True)
    # Written here: a console that writes ends the program by itself where the reader has gone.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in text.get().splitlines())


def progress_bars() -> Any:
    """Bars on stderr that vanish when done."""
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Amount(ProgressColumn):
        def render(self, task: Task) -> Text:
            unit = task.fields["unit"]
            speed = task.speed or 0.0
            if unit == "B":
                of = f" of {size_text(task.total)}" if task.total is not None else ""
                return Text(f"{size_text(task.completed)}{of}  {size_text(speed)}/s")
            of = f"/{task.total:.0f}" if task.total is not None else ""
            return Text(f"{task.completed:.0f}{of} {unit}  {speed:.3g} {unit}/s")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        Amount(),
        TimeRemainingColumn(compact=True),
        console=console(sys.stderr),
        transient=True,
    )
