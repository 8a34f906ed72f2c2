"""Concurrency rows: requests kept in flight through the scheduler, and in words where more of them stop paying."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from llmrun.bench.grid import Case
from llmrun.bench.latency import with_latency
from llmrun.bench.row import Row, make_row, with_samples
from llmrun.bench.samples import sample
from llmrun.bench.serving import Flight, Prompts, Wave, latency, stream_tps
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Need, Subject
from llmrun.engine.context import Context
from llmrun.engine.engine import Engine
from llmrun.engine.params import SamplingParams

GREEDY = SamplingParams(temp=0, ignore_eos=True)
KNEE = 0.9  # of the best throughput: from here on, more streams only wait for each other


@dataclass(frozen=True)
class Load:
    """`in_flight` requests of `case`'s lengths at once, the first `shared` tokens of their prompts the same."""

    case: Case
    in_flight: int
    shared: int = 0

    @property
    def need(self) -> Need:
        return Need(self.in_flight * (self.case.n_prompt + self.case.n_gen), self.in_flight)

    @property
    def name(self) -> str:
        shared = f" ({self.shared} shared)" if self.shared else ""
        return f"serve {self.case.n_prompt}+{self.case.n_gen}{shared}"


def keep_in_flight(engine: Engine, load: Load, stop: Stop) -> Flight:
    """The load's requests, decoded greedily."""
    case = load.case
    prompts = Prompts(engine.model.vocab.n_tokens, case.n_prompt, case.n_gen, load.shared, GREEDY)
    return Flight(engine, prompts, load.in_flight, stop)


def concurrency_row(subject: Subject, load: Load, context: Context, stop: Stop) -> Row:
    """Samples are tokens per second of all streams together, each over the time in which as many requests as are in
    flight end. `case.repeats` times that number are served, more where samples are apart."""
    case = load.case
    waves: list[Wave] = []
    with closing(Engine(context)) as engine:
        flight = keep_in_flight(engine, load, stop)

        def once() -> float:
            waves.append(flight.advance(load.in_flight))
            return waves[-1].tps

        samples = sample(once, case.repeats)
    layers = context.model.placed.layers
    row = make_row("concurrency", subject, case.setting, layers, load.name, case.n_prompt, case.n_gen)
    row = replace(row, concurrency=load.in_flight, stream_tps=stream_tps(waves))
    return with_latency(with_samples(row, samples), latency(waves))


def knee_sentence(rows: Sequence[Row]) -> str:
    """Where more streams stop paying, of rows that differ only in concurrency; empty for fewer than two."""
    rows = sorted(rows, key=lambda row: row.concurrency)
    if len(rows) < 2:
        return ""
    best = max(row.median_tps or 0.0 for row in rows)
    knee = next(row for row in rows if (row.median_tps or 0.0) >= KNEE * best)
    first, last = rows[0], rows[-1]
    ratio = _times(knee.median_tps, first.median_tps)
    gain = f"{knee.median_tps or 0.0:.1f} tok/s in all, {ratio} that of {first.concurrency}"
    if knee is last:
        return f"no knee up to {last.concurrency} streams: {gain}, and still growing"
    more = 100 * ((last.median_tps or 0.0) / (knee.median_tps or 1.0) - 1)
    return (
        f"the knee is at {knee.concurrency} stream{'s' if knee.concurrency > 1 else ''}: {gain}; {last.concurrency} "
        f"streams change that by {more:+.0f} %, and each token takes {_times(last.itl_p50_s, knee.itl_p50_s)} as long"
    )


def _times(value: float | None, of: float | None) -> str:
    return f"{value / of:.1f} times" if value and of else "an unknown number of times"
