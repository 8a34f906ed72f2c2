"""Requests through the real engine: a number of them kept in flight, and what their event times say."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmrun.bench.stop import Stop
from llmrun.engine.engine import Engine
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Finished, Request
from llmrun.engine.stats import measure, percentile
from llmrun.errors import EngineError

SEED = 1


@dataclass(frozen=True)
class Wave:
    """Requests that were served together, in `wall_s` seconds from the first submission to the last end."""

    finished: tuple[Finished, ...]
    wall_s: float

    @property
    def tps(self) -> float:
        """Generated tokens of all requests over the whole time, prefill included."""
        return sum(len(one.tokens) for one in self.finished) / self.wall_s


@dataclass(frozen=True)
class Latency:
    """Percentiles in seconds over the requests of all waves; gaps between tokens are pooled before."""

    ttft_s: tuple[float, ...]
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_p99_s: float | None
    queue_p50_s: float | None
    queue_p95_s: float | None


class Prompts:
    """Requests of random tokens, none like another but for the `shared` tokens that all begin with."""

    def __init__(self, n_vocab: int, n_prompt: int, n_gen: int, shared: int, sampling: SamplingParams) -> None:
        self._random = random.Random(SEED)
        self._n_vocab = n_vocab
        self._prefix = self._tokens(shared)
        self._n_own = n_prompt - shared
        self._n_gen = n_gen
        self._sampling = sampling

    def take(self, n: int, n_gen: int | None = None) -> list[Request]:
        return [
            Request(self._prefix + self._tokens(self._n_own), self._sampling, n_gen or self._n_gen) for _ in range(n)
        ]

    def _tokens(self, n: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(self._n_vocab) for _ in range(n))


def serve(
    engine: Engine,
    requests: Sequence[Request],
    in_flight: int,
    stop: Stop,
    clock: Callable[[], float] = time.perf_counter,
) -> Wave:
    """Submit `in_flight` requests, and another whenever one ends. Raises Interrupted, and EngineError for a request
    that fails."""
    waiting = iter(requests)
    finished: list[Finished] = []
    stop.engine = engine
    started = clock()
    try:
        _submit(engine, waiting, in_flight)
        while not engine.idle:
            stop.check()
            ended = [event for event in engine.step() if isinstance(event, Finished)]
            finished += ended
            _submit(engine, waiting, len(ended))
    finally:
        stop.engine = None
    stop.check()
    for one in finished:
        if one.reason == "error":
            raise EngineError(f"a request failed: {one.error}", one.hint)
    return Wave(tuple(finished), clock() - started)


def _submit(engine: Engine, waiting: Iterator[Request], n: int) -> None:
    for _, request in zip(range(n), waiting, strict=False):
        engine.submit(request)


def latency(waves: Sequence[Wave]) -> Latency:
    """What the raw times of all requests say together."""
    all_of_them = [one for wave in waves for one in wave.finished]
    speeds = [measure(one) for one in all_of_them]
    ttft = [speed.ttft_s for speed in speeds if speed.ttft_s is not None]
    queue = [speed.queue_s for speed in speeds]
    gaps = [after - before for one in all_of_them for before, after in pairwise(one.timings.token_at)]
    return Latency(
        tuple(ttft),
        percentile(ttft, 50),
        percentile(ttft, 95),
        percentile(ttft, 99),
        percentile(gaps, 50),
        percentile(gaps, 95),
        percentile(gaps, 99),
        percentile(queue, 50),
        percentile(queue, 95),
    )


def stream_tps(waves: Sequence[Wave]) -> float | None:
    """Decode speed of the middle request."""
    speeds = [measure(one).decode_tps for wave in waves for one in wave.finished]
    return percentile([speed for speed in speeds if speed is not None], 50)
