"""Requests through the real engine: a number of them kept in flight, and what their event times say."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmrun.bench.stop import Stop
from llmrun.engine.engine import Engine
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Finished, Request, Token
from llmrun.engine.stats import measure, percentile
from llmrun.errors import EngineError

SEED = 1


@dataclass(frozen=True)
class Wave:
    """Some `wall_s` seconds of serving: the requests that ended in them, and how many tokens all requests made."""

    finished: tuple[Finished, ...]
    n_tokens: int
    wall_s: float

    @property
    def tps(self) -> float:
        """Generated tokens of all requests over the whole time, prefill included."""
        return self.n_tokens / self.wall_s


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
        self.n_gen = n_gen
        self._sampling = sampling

    def next(self, n_gen: int | None = None) -> Request:
        return Request(self._prefix + self._tokens(self._n_own), self._sampling, n_gen or self.n_gen)

    def _tokens(self, n: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(self._n_vocab) for _ in range(n))


class Flight:
    """Keeps `in_flight` requests at once in the engine: whenever one ends, the next takes its place."""

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        in_flight: int,
        stop: Stop,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Warms up. The first answers are of different lengths, so that from then on the ends of requests, and the
        prefills after them, spread evenly over the time. Raises what `advance` raises."""
        self._engine = engine
        self._prompts = prompts
        self._in_flight = in_flight
        self._stop = stop
        self._clock = clock
        self._running = 0
        for place in range(in_flight):
            self._submit(1 + prompts.n_gen * place // in_flight)
        self.advance(in_flight)

    def advance(self, n: int) -> Wave:
        """Serve until `n` more requests have ended. Raises Interrupted, and EngineError for one that fails."""
        finished: list[Finished] = []
        n_tokens = 0
        self._stop.engine = self._engine
        started = self._clock()
        try:
            while len(finished) < n:
                self._stop.check()
                while self._running < self._in_flight:
                    self._submit()
                for event in self._engine.step():
                    if isinstance(event, Token):
                        n_tokens += 1
                    elif isinstance(event, Finished):
                        finished.append(event)
                        self._running -= 1
        finally:
            self._stop.engine = None
        wall_s = self._clock() - started
        self._stop.check()
        for one in finished:
            if one.reason == "error":
                raise EngineError(f"a request failed: {one.error}", one.hint)
        return Wave(tuple(finished), n_tokens, wall_s)

    def _submit(self, n_gen: int | None = None) -> None:
        self._engine.submit(self._prompts.next(n_gen))
        self._running += 1


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
