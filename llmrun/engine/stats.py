"""What one request's event times mean: TTFT, prefill and decode speed, inter-token latency. Pure arithmetic."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from llmrun.engine.request import Finished


class Speed(NamedTuple):
    """Seconds and tokens per second of one request; None where there is nothing to divide by.

    `ttft_s` runs from submission to the first token; `prefill_tps` counts only tokens that were processed, not
    cached ones; `decode_tps` is (tokens - 1) / time from first to last token; `itl_*` are percentiles of the
    times between tokens."""

    ttft_s: float | None
    prefill_s: float
    prefill_tps: float | None
    decode_s: float
    decode_tps: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_p99_s: float | None
    queue_s: float
    total_s: float


def measure(finished: Finished) -> Speed:
    """The speeds of a finished request, which may have produced nothing."""
    times = finished.timings
    tokens = times.token_at
    started = times.started_at or times.ended_at
    prefill_s = max(0.0, times.prefilled_at - started)
    processed = finished.prompt_tokens - finished.cached_tokens
    decode_s = tokens[-1] - tokens[0] if tokens else 0.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(tokens)]
    return Speed(
        ttft_s=tokens[0] - times.submitted_at if tokens else None,
        prefill_s=prefill_s,
        prefill_tps=processed / prefill_s if prefill_s > 0 else None,
        decode_s=decode_s,
        decode_tps=len(gaps) / decode_s if decode_s > 0 else None,
        itl_p50_s=percentile(gaps, 50),
        itl_p95_s=percentile(gaps, 95),
        itl_p99_s=percentile(gaps, 99),
        queue_s=max(0.0, started - times.submitted_at),
        total_s=times.ended_at - times.submitted_at,
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """The `share` percentile (0 to 100) by linear interpolation between order statistics; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    at = (len(ordered) - 1) * share / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
