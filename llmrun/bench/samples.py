"""Repeats of one measurement: their mean, median and spread, and when there are enough of them. Pure."""

import statistics
from collections.abc import Callable, Sequence

STEADY = 0.05  # standard deviation over mean, above which the numbers jump
MOST_FACTOR = 3  # repeats at most, as a multiple of those asked for


def mean(samples: Sequence[float]) -> float:
    return statistics.fmean(samples) if samples else 0.0


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples) if samples else 0.0


def deviation(samples: Sequence[float]) -> float:
    """Sample standard deviation (n - 1), as llama-bench has it; 0 of one sample."""
    return statistics.stdev(samples) if len(samples) > 1 else 0.0


def spread(samples: Sequence[float]) -> float:
    """The deviation as a share of the mean."""
    average = mean(samples)
    return deviation(samples) / average if average else 0.0


def sample(measure: Callable[[], float], repeats: int) -> tuple[float, ...]:
    """`repeats` measurements, and more of them, up to three times as many, while they are apart by over 5 %."""
    samples = [measure() for _ in range(repeats)]
    while spread(samples) > STEADY and len(samples) < MOST_FACTOR * repeats:
        samples.append(measure())
    return tuple(samples)
