"""Speeds from event times on a clock of our own (case BEN-03)."""

import pytest

from llmrun.engine.request import Finished, Timings
from llmrun.engine.stats import measure, percentile


def finished(token_at: list[float], prompt: int = 100, cached: int = 0, started: float = 5.0) -> Finished:
    timings = Timings(5.0, started, started + 2.0, token_at, token_at[-1] if token_at else started + 2.0)
    return Finished(1, "stop", "", tuple(range(len(token_at))), prompt, cached, timings)


def test_prefill_and_decode_are_apart_from_load_and_from_each_other() -> None:
    """BEN-03: loaded at 5 s; 100 prompt tokens in 2 s; 11 tokens from 7.1 to 8.1 s."""
    speed = measure(finished([7.1 + i / 10 for i in range(11)]))
    assert speed.ttft_s == pytest.approx(2.1)
    assert speed.prefill_tps == pytest.approx(50)
    assert speed.decode_tps == pytest.approx(10)
    assert [speed.itl_p50_s, speed.itl_p99_s] == pytest.approx([0.1, 0.1])


def test_cached_prompt_tokens_are_not_counted_as_processed() -> None:
    """BEN-03"""
    assert measure(finished([7.1], cached=99)).prefill_tps == pytest.approx(0.5)


@pytest.mark.parametrize("token_at", [[], [7.1]])
def test_no_division_by_zero_for_no_tokens_and_one(token_at: list[float]) -> None:
    """BEN-03"""
    speed = measure(finished(token_at))
    assert speed.decode_tps is None
    assert speed.itl_p50_s is None
    assert speed.decode_s == 0


def test_the_wait_in_the_queue_is_part_of_ttft_but_not_of_prefill() -> None:
    speed = measure(finished([10.1], started=8.0))
    assert speed.queue_s == pytest.approx(3)
    assert speed.ttft_s == pytest.approx(5.1)
    assert speed.prefill_s == pytest.approx(2)


def test_percentiles_interpolate() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert percentile(values, 50) == 2.5
    assert percentile(values, 100) == 4
    assert percentile(values, 0) == 1
    assert percentile(values, 95) == pytest.approx(3.85)
    assert percentile([], 50) is None
