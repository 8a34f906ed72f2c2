"""Two settings against each other in one run, A B A B, so that a slow spell of the machine falls on both."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

from llmrun.bench.compare import Difference, difference
from llmrun.bench.grid import Case
from llmrun.bench.measure import Timing
from llmrun.bench.samples import MOST_FACTOR, STEADY, spread
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Need, Subject
from llmrun.errors import UsageError
from llmrun.report import Report


def check_sides(a: Sequence[Case], b: Sequence[Case]) -> None:
    """Raise UsageError where the two sides do not run the same tests."""
    if [case.name for case in a] != [case.name for case in b]:
        raise UsageError(
            f"the sides of --ab run different tests: {_names(a)} and {_names(b)}",
            "give both the same -p, -n and -d, and one value of each setting",
        )


def _names(cases: Sequence[Case]) -> str:
    return ", ".join(case.name for case in cases)


def alternate(
    a: Callable[[], float], b: Callable[[], float], repeats: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Samples of both sides in turn: `repeats` of each, and up to three times as many while either jumps."""
    first, second = [a()], [b()]
    while len(first) < repeats or (
        max(spread(first), spread(second)) > STEADY and len(first) < MOST_FACTOR * repeats
    ):
        first.append(a())
        second.append(b())
    return tuple(first), tuple(second)


def run_versus(
    subjects: tuple[Subject, Subject], a: Sequence[Case], b: Sequence[Case], stop: Stop, report: Report
) -> Iterator[Difference]:
    """The ratio of B to A for each test. Both contexts are open at once, so `subjects` are two where the layers are
    placed differently. Raises Interrupted."""
    subject = subjects[0]
    for done, (left, right) in enumerate(zip(a, b, strict=True)):
        report.progress(f"{subject.name} {left.name}", done, len(a), "tests")
        with ExitStack() as stack:
            sides = []
            for model, case in zip(subjects, (left, right), strict=True):
                with stop.waiting():
                    context = stack.enter_context(model.open(case.setting, Need(case.n_ctx)))
                sides.append(stack.enter_context(closing(Timing(context, case, stop))))
            first, second = alternate(sides[0].once, sides[1].once, max(left.repeats, right.repeats))
        report.progress(f"{subject.name} {left.name}", len(a), len(a), "tests")
        yield difference(subject.name, left.name, "tok/s", first, second)
