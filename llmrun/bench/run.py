"""Runs the tests of a model one after the other, and hands out each row as it is finished."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from llmrun.bench.concurrency import Load, concurrency_row
from llmrun.bench.grid import Case, Setting
from llmrun.bench.latency import latency_row, start_row
from llmrun.bench.measure import measure_case
from llmrun.bench.roofline import mixed_bandwidth, weight_bytes, with_roofline
from llmrun.bench.row import Row, loop_row
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Need, Subject
from llmrun.engine.context import Context
from llmrun.machine.load import CpuReading
from llmrun.plan.weights import sort_tensors
from llmrun.report import Report


@dataclass(frozen=True)
class Tests:
    """What is run on each model, in this order. `starts` are settings for a new process."""

    loops: tuple[Case, ...] = ()
    requests: tuple[Case, ...] = ()
    loads: tuple[Load, ...] = ()
    starts: tuple[Setting, ...] = ()
    start_repeats: int = 5

    def __len__(self) -> int:
        return len(self.loops) + len(self.requests) + len(self.loads) + len(self.starts)


@dataclass(frozen=True)
class Bench:
    """What all tests of one run share. `bandwidth` is the host's, in bytes per second, `device_bandwidth` each
    device's; `start_command` makes the command that answers in a new process."""

    stop: Stop
    report: Report
    bandwidth: float
    start_command: Callable[[Subject, Setting], Sequence[str]]
    device_bandwidth: Mapping[str, float] = field(default_factory=dict)
    _buffers: dict[Setting, Sequence[tuple[str, int]]] = field(default_factory=dict)

    def check(self, subject: Subject, tests: Tests) -> None:
        """Raise UsageError or DoesNotFitError where one of the tests cannot run. Reads no weights."""
        largest: dict[tuple[Setting, int], Need] = {}
        needs = [(case.setting, Need(case.n_ctx)) for case in (*tests.loops, *tests.requests)]
        for setting, need in needs + [(load.case.setting, load.need) for load in tests.loads]:
            before = largest.get((setting, need.n_seq_max))
            if before is None or before.n_ctx < need.n_ctx:
                largest[setting, need.n_seq_max] = need
        for (setting, _), need in largest.items():
            subject.check(setting, need)

    def run(self, subject: Subject, tests: Tests) -> Iterator[Row]:
        """A row for each test, in order. Raises Interrupted between and inside them."""
        fastest: dict[Setting, float] = {}
        layers: dict[Setting, int] = {}
        for done, (name, setting, measure) in enumerate(self._steps(subject, tests)):
            self.stop.check()
            task = f"{subject.name} {name}"
            self.report.progress(task, done, len(tests), "tests")
            before = CpuReading.now()
            row = measure()
            if row.kind != "start":
                layers[setting] = row.gpu_layers
            # A new process says nothing of its layers: it places them as the tests with its settings did.
            row = replace(
                row,
                gpu_layers=layers.get(setting, 0),
                busy_cores=round(CpuReading.now().busy_cores_since(before), 2),
            )
            self.report.progress(task, len(tests), len(tests), "tests")
            if row.kind == "loop" and not row.n_gen:
                fastest[setting] = max(fastest.get(setting, 0.0), row.median_tps or 0.0)
            yield with_roofline(subject, row, self._bandwidth(subject, setting), fastest.get(setting))

    def _bandwidth(self, subject: Subject, setting: Setting) -> float:
        """Of the memories that hold the weights, as they lie with these settings."""
        total = weight_bytes(subject.info, sort_tensors(subject.tensors, subject.info.n_layer))
        return mixed_bandwidth(total, self._buffers.get(setting, ()), self.device_bandwidth, self.bandwidth)

    def _steps(self, subject: Subject, tests: Tests) -> Iterator[tuple[str, Setting, Callable[[], Row]]]:
        for case in tests.loops:
            yield case.name, case.setting, partial(self._loop, subject, case)
        for case in tests.requests:
            yield f"run {case.n_prompt}+{case.n_gen}", case.setting, partial(self._request, subject, case)
        for load in tests.loads:
            name = f"{load.name} x{load.in_flight}"
            yield name, load.case.setting, partial(self._load, subject, load)
        for setting in tests.starts:
            yield "cold start", setting, partial(self._start, subject, setting, tests.start_repeats)

    def _open(self, subject: Subject, setting: Setting, need: Need) -> Context:
        with self.stop.waiting():
            context = subject.open(setting, need)
        self._buffers[setting] = context.model.placed.buffers
        return context

    def _loop(self, subject: Subject, case: Case) -> Row:
        with self._open(subject, case.setting, Need(case.n_ctx)) as context:
            return loop_row(subject, case, context.model.placed.layers, measure_case(context, case, self.stop))

    def _request(self, subject: Subject, case: Case) -> Row:
        with self._open(subject, case.setting, Need(case.n_ctx)) as context:
            return latency_row(subject, case, context, self.stop)

    def _load(self, subject: Subject, load: Load) -> Row:
        with self._open(subject, load.case.setting, load.need) as context:
            return concurrency_row(subject, load, context, self.stop)

    def _start(self, subject: Subject, setting: Setting, repeats: int) -> Row:
        subject.close()  # the new process needs the memory
        return start_row(subject, setting, repeats, self.start_command(subject, setting), self.stop)
