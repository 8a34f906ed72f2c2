"""Two sets of results row by row: how much faster, or that no difference can be seen. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmrun.bench.environment import MachineFacts
from llmrun.bench.row import Row
from llmrun.bench.samples import deviation, mean, median
from llmrun.errors import UsageError

SETTINGS = ("threads", "batch", "ubatch", "gpu_layers", "kv_type", "flash_attn")
NO_DIFFERENCE = "no difference seen"


@dataclass(frozen=True)
class Difference:
    """`before` and `after` are mean and standard deviation in `unit`; `ratio` is of the medians, after over before.
    `verdict` is in words."""

    model: str
    test: str
    unit: str
    before: tuple[float, float]
    after: tuple[float, float]
    ratio: float
    verdict: str


def check_comparable(then: MachineFacts, before: Sequence[Row], now: MachineFacts, sha256: Sequence[str]) -> None:
    """Raise UsageError for results of another machine, or of other model files than `sha256`."""
    hint = "--compare-anyway compares them all the same"
    if now.identity != then.identity:
        raise UsageError(f"these results are of another machine: {then.identity}; this is {now.identity}", hint)
    if not {row.sha256 for row in before} & set(sha256):
        names = ", ".join(sorted({row.model for row in before}))
        raise UsageError(f"these results are of other model files ({names})", hint)


def compare_rows(before: Sequence[Row], after: Sequence[Row], *, anyway: bool = False) -> list[Difference]:
    """A difference for each row that has a counterpart: the same model file, test and settings. With `anyway` the
    model may be another, and settings may differ where the counterpart is the only one of its test."""
    found = []
    for row in after:
        twin = _twin(row, before, anyway=anyway)
        if twin is not None:
            found.append(difference(row.model, row.label, *_values(twin, row)))
    return found


def _twin(row: Row, before: Sequence[Row], *, anyway: bool) -> Row | None:
    same = [one for one in before if (one.kind, one.test, one.concurrency) == (row.kind, row.test, row.concurrency)]
    exact = [
        one
        for one in same
        if one.sha256 == row.sha256 and all(getattr(one, name) == getattr(row, name) for name in SETTINGS)
    ]
    if exact:
        return exact[-1]
    return same[0] if anyway and len(same) == 1 else None


def _values(before: Row, after: Row) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    if before.samples_tps and after.samples_tps:
        return "tok/s", before.samples_tps, after.samples_tps
    return "s", before.samples_ttft_s, after.samples_ttft_s


def difference(model: str, test: str, unit: str, before: Sequence[float], after: Sequence[float]) -> Difference:
    """Mean and spread of both, and whether the two intervals of one standard deviation overlap."""
    (low, high), (a, b) = _interval(before), _interval(after)
    ratio = median(after) / median(before) if median(before) else 0.0
    if a <= high and low <= b:
        verdict = NO_DIFFERENCE
    else:
        change = 100 * (ratio - 1)
        better = (ratio > 1) == (unit == "tok/s")
        verdict = f"{'faster' if better else 'slower'} by {abs(change):.1f} %"
    return Difference(
        model, test, unit, (mean(before), deviation(before)), (mean(after), deviation(after)), ratio, verdict
    )


def _interval(samples: Sequence[float]) -> tuple[float, float]:
    return mean(samples) - deviation(samples), mean(samples) + deviation(samples)
