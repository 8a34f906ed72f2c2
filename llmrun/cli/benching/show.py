"""Results as a table, Markdown, JSON, JSON lines or CSV on stdout; what else there is to say on stderr."""

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from llmrun.bench.compare import Difference
from llmrun.bench.drift import Drift
from llmrun.bench.environment import BuildFacts, MachineFacts, header_lines
from llmrun.bench.row import Row
from llmrun.bench.table import (
    Table,
    concurrency_table,
    csv_fields,
    difference_table,
    drift_table,
    latency_table,
    loop_table,
    markdown,
    warnings,
)
from llmrun.cli.output import json_line, print_json, print_table
from llmrun.cli.terminal import streams
from llmrun.machine.threads import ThreadChoice

FORMATS = ("table", "md", "json", "jsonl", "csv")


@dataclass
class Shown:
    """Takes rows as they finish: JSON lines and CSV are written at once, tables when all widths are known."""

    format: str
    machine: MachineFacts
    build: BuildFacts
    threads: ThreadChoice
    quiet: bool = False
    rows: list[Row] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    differences: list[Difference] | None = None  # against the results or setting named first in `names`
    names: tuple[str, str] = ("A", "B")
    drifts: list[Drift] | None = None

    def __post_init__(self) -> None:
        if not self.quiet:
            for line in header_lines(self.machine, self.build, self.threads):
                streams.say(line)
        if self.format == "csv":
            self._csv([field.name for field in fields(Row)])

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self.format == "jsonl":
            self._line(json_line(row))
        elif self.format == "csv":
            self._csv(list(csv_fields(row).values()))

    def add_difference(self, found: Difference) -> None:
        self.differences = [*(self.differences or ()), found]

    def finish(self, *, interrupted: bool) -> None:
        """Show what is left to show."""
        if self.format == "json":
            print_json(self.document())
        elif self.format in ("table", "md"):
            for table in self._tables():
                self._table(table)
        if self.differences is not None:
            self._show_differences(self.differences)
        if self.drifts is not None and self.format in ("table", "md"):
            self._table(drift_table(self.drifts))
        for drift in (self.drifts or ()) if self.format == "jsonl" else ():
            self._line(json_line(drift))
        for line in (*self.sentences, *warnings(self.rows)):
            streams.say(line)
        if interrupted:
            streams.say(f"interrupted: {len(self.rows or self.differences or self.drifts or ())} tests were finished")

    def _show_differences(self, found: list[Difference]) -> None:
        if self.rows and not found:
            streams.say(f"no row has a counterpart in {self.names[0]}: the same tests and settings would have")
        elif self.format in ("table", "md") and found:
            self._table(difference_table(found, self.names))
        elif self.format == "jsonl":
            for one in found:
                self._line(json_line(one))
        elif self.format == "csv" and found:
            streams.say("differences are not in CSV: --format json has them")

    def document(self) -> dict[str, object]:
        """`bench --json`."""
        return {
            "machine": self.machine,
            "build": self.build,
            "threads": self.threads,
            "rows": self.rows,
            **({} if self.differences is None else {"differences": self.differences}),
            **({} if self.drifts is None else {"drift": self.drifts}),
            "notes": [*self.sentences, *warnings(self.rows)],
        }

    def _tables(self) -> list[Table]:
        backend = ",".join(self.build.backends)
        bars = self.format == "table" and streams.is_terminal(sys.stdout)
        loops = [row for row in self.rows if row.kind == "loop"]
        latency = [row for row in self.rows if row.kind in ("latency", "start")]
        streams_rows = [row for row in self.rows if row.kind == "concurrency"]
        tables = []
        if loops:
            tables.append(loop_table(loops, backend, bars=bars))
        if latency:
            tables.append(latency_table(latency, backend))
        if streams_rows:
            tables.append(concurrency_table(streams_rows, backend, bars=bars))
        return tables

    def _table(self, table: Table) -> None:
        if self.format == "md":
            for line in markdown(table):
                self._line(line)
        else:
            print_table(table.columns, table.rows, table.right)
        self._line("")

    def _csv(self, cells: Sequence[str]) -> None:
        csv.writer(sys.stdout, lineterminator="\n").writerow(cells)
        sys.stdout.flush()

    def _line(self, text: str) -> None:
        print(text, flush=True)
