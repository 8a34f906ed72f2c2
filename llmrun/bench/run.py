"""Runs the tests of several models one after the other, and hands out each row as it is finished."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby

from llmrun.bench.grid import Case, Setting
from llmrun.bench.measure import measure_case
from llmrun.bench.roofline import with_roofline
from llmrun.bench.row import Row, loop_row
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Need, Subject
from llmrun.engine.context import Context
from llmrun.machine.load import CpuReading
from llmrun.report import Report


@dataclass
class Bench:
    """What all tests of one run share. `bandwidth` is in bytes per second; of devices it is not known."""

    stop: Stop
    report: Report
    bandwidth: float

    def busy_during(self, measure: Callable[[], Row]) -> Row:
        """The row, with the cores that other programs kept busy meanwhile."""
        before = CpuReading.now()
        row = measure()
        return replace(row, busy_cores=round(CpuReading.now().busy_cores_since(before), 2))


def check_cases(subject: Subject, cases: Sequence[Case]) -> None:
    """Raise UsageError or DoesNotFitError where one of the tests cannot run. Reads no weights."""
    for setting, group in _by_setting(cases):
        subject.check(setting, Need(max(case.n_ctx for case in group)))


def run_cases(bench: Bench, subject: Subject, cases: Sequence[Case]) -> Iterator[Row]:
    """A row for each test, in order. Raises Interrupted between and inside them."""
    fastest: dict[Setting, float] = {}
    for done, case in enumerate(cases):
        bench.stop.check()
        bench.report.progress(f"{subject.name} {case.name}", done, len(cases), "tests")
        with closing(subject.open(case.setting, Need(case.n_ctx))) as context:
            row = bench.busy_during(lambda c=case, ctx=context: _measure(bench, subject, c, ctx))  # type: ignore[misc]
        bench.report.progress(f"{subject.name} {case.name}", len(cases), len(cases), "tests")
        if not case.n_gen:
            fastest[case.setting] = max(fastest.get(case.setting, 0.0), row.median_tps or 0.0)
        # The bandwidth is the host's: where layers are elsewhere it says nothing.
        bandwidth = 0.0 if row.gpu_layers else bench.bandwidth
        yield with_roofline(subject, row, bandwidth, fastest.get(case.setting))


def _measure(bench: Bench, subject: Subject, case: Case, context: Context) -> Row:
    return loop_row(subject, case, context.model.placed.layers, measure_case(context, case, bench.stop))


def _by_setting(cases: Sequence[Case]) -> Iterator[tuple[Setting, list[Case]]]:
    for setting, group in groupby(cases, key=lambda case: case.setting):
        yield setting, list(group)
