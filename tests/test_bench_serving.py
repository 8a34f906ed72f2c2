"""Latency and concurrency rows: percentiles against raw event times, requests in flight, the knee, cold starts."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmrun.bench.concurrency import GREEDY, Load, concurrency_row, knee_sentence
from llmrun.bench.grid import Case, Grid
from llmrun.bench.latency import first_byte_s, latency_row
from llmrun.bench.row import Row, make_row, with_samples
from llmrun.bench.serving import Flight, Prompts, Wave, latency, stream_tps
from llmrun.bench.stop import Stop
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.model import Model, ModelSettings
from llmrun.engine.request import Event, Finished, Prefilling, Timings
from llmrun.errors import EngineError, Interrupted
from llmrun.prepare.subject import OpenSubject
from llmrun.report import Quiet

SETTING = Grid().settings(1)[0]


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    settings = ContextSettings(1024, n_batch=64, n_seq_max=4)
    with Model.load(tiny_model, ModelSettings()) as model, Context(model, settings) as context:
        made = Engine(context)
        yield made
        made.close()


def finished(submitted: float, started: float, token_at: Sequence[float]) -> Finished:
    times = Timings(submitted, started, token_at[0], list(token_at), token_at[-1])
    return Finished(1, "length", "", tuple(range(len(token_at))), 10, 0, times)


def test_percentiles_are_those_of_the_raw_event_times(engine: Engine) -> None:
    flight = Flight(engine, Prompts(256, 20, 32, 0, GREEDY), 4, Stop())
    waves = [flight.advance(4) for _ in range(3)]
    raw = [one.timings for wave in waves for one in wave.finished]
    assert len(raw) == 12
    found = latency(waves)
    ttft = [times.token_at[0] - times.submitted_at for times in raw]
    gaps = np.concatenate([np.diff(times.token_at) for times in raw])
    queue = [times.started_at - times.submitted_at for times in raw]
    assert found.ttft_s == tuple(ttft)
    for share in (50, 95, 99):
        assert getattr(found, f"ttft_p{share}_s") == pytest.approx(np.percentile(ttft, share))
        assert getattr(found, f"itl_p{share}_s") == pytest.approx(np.percentile(gaps, share))
    assert found.queue_p50_s == pytest.approx(np.percentile(queue, 50))
    assert found.queue_p95_s == pytest.approx(np.percentile(queue, 95))


def test_times_that_are_known_give_numbers_that_are_known() -> None:
    """BEN-03: 11 tokens between 2.1 and 3.1 s are 10 intervals in 1 s; the first takes 2.1 s from submission."""
    wave = Wave((finished(0.0, 0.5, [2.1 + i / 10 for i in range(11)]),), 11, 4.0)
    found = latency([wave])
    assert found.ttft_p50_s == pytest.approx(2.1)
    assert found.itl_p50_s == pytest.approx(0.1)
    assert found.queue_p50_s == pytest.approx(0.5)
    assert stream_tps([wave]) == pytest.approx(10)
    assert wave.tps == pytest.approx(11 / 4)
    single = latency([Wave((finished(0.0, 0.0, [1.0]),), 1, 1.0)])
    assert single.itl_p50_s is None
    assert stream_tps([Wave((finished(0.0, 0.0, [1.0]),), 1, 1.0)]) is None


def test_whenever_a_request_ends_the_next_takes_its_place(engine: Engine) -> None:
    flight = Flight(engine, Prompts(256, 16, 8, 0, GREEDY), 4, Stop())
    steps: list[tuple[int, list[Event]]] = []
    step = engine.step

    def watched() -> list[Event]:
        in_flight = len(engine.scheduler.running) + len(engine.scheduler.waiting)
        steps.append((in_flight, step()))
        return steps[-1][1]

    engine.step = watched  # type: ignore[method-assign]
    waves = [flight.advance(4) for _ in range(5)]
    assert {in_flight for in_flight, _ in steps} == {4}
    # One ends in every second step, so that no step is without prefill for long and none has all of it.
    assert [sum(isinstance(event, Finished) for event in events) for _, events in steps] == [0, 1] * 20
    assert [sum(isinstance(event, Prefilling) for event in events) for _, events in steps] == [1, 0] * 20
    assert [(len(wave.finished), wave.n_tokens) for wave in waves] == [(4, 32)] * 5
    assert all(len(one.tokens) == 8 for wave in waves for one in wave.finished)
    ids = [one.timings.submitted_at for wave in waves for one in wave.finished]
    assert ids == sorted(ids)


def test_the_time_of_a_wave_is_that_of_its_tokens(engine: Engine) -> None:
    """Three requests at once of 6 tokens each, on a clock that stands still but for a second at each reading."""
    ticks = iter(range(100))
    flight = Flight(engine, Prompts(256, 20, 6, 0, GREEDY), 3, Stop(), lambda: float(next(ticks)))
    wave = flight.advance(3)
    assert (wave.n_tokens, wave.wall_s) == (18, 1.0)
    assert wave.tps == 18


def test_streams_that_outnumber_their_tokens_are_served(engine: Engine) -> None:
    """Several end in one step, more than were waited for."""
    flight = Flight(engine, Prompts(256, 16, 1, 0, GREEDY), 4, Stop())
    assert [(len(wave.finished), wave.n_tokens) for wave in (flight.advance(4), flight.advance(2))] == [(4, 4)] * 2


def test_only_the_shared_prefix_is_found_in_the_cache(engine: Engine) -> None:
    def cached(n_shared: int) -> set[int]:
        flight = Flight(engine, Prompts(256, 40, 4, n_shared, GREEDY), 3, Stop())
        return {one.cached_tokens for one in flight.advance(9).finished}

    assert cached(16) == {16}
    assert max(cached(0)) < 4


def test_a_stop_ends_serving(engine: Engine) -> None:
    stop = Stop()
    flight = Flight(engine, Prompts(256, 20, 8, 0, GREEDY), 2, stop)
    stop.ask()
    with pytest.raises(Interrupted):
        flight.advance(2)


def test_a_request_that_fails_is_an_error_and_no_number(engine: Engine) -> None:
    with pytest.raises(EngineError, match="2000 tokens"):
        Flight(engine, Prompts(256, 2000, 8, 0, GREEDY), 1, Stop())


def test_rows_come_from_the_engine(tiny_model: Path, engine: Engine) -> None:
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings())
    case = Case(20, 8, 0, 3, SETTING)
    row = concurrency_row(subject, Load(case, 4), engine.context, Stop())
    assert (row.test, row.concurrency, row.kind) == ("serve 20+8", 4, "concurrency")
    assert len(row.samples_ttft_s) == 4 * len(row.samples_tps) >= 12
    assert row.stream_tps and row.itl_p99_s and row.queue_p50_s is not None
    engine.context.clear()
    alone = latency_row(subject, case, engine.context, Stop())
    assert (alone.test, alone.kind) == ("run 20+8", "latency")
    assert len(alone.samples_ttft_s) == len(alone.samples_tps) >= 3


def rows(tiny_model: Path, speeds: dict[int, float]) -> list[Row]:
    subject = OpenSubject(str(tiny_model), Quiet(), ModelSettings())
    row = make_row("concurrency", subject, SETTING, 0, "serve 128+128", 128, 128)
    return [replace(with_samples(row, [tps]), concurrency=n, itl_p50_s=n / tps) for n, tps in speeds.items()]


def test_the_knee_is_where_more_streams_stop_paying(tiny_model: Path) -> None:
    said = knee_sentence(rows(tiny_model, {1: 100, 2: 180, 4: 290, 8: 310, 16: 300}))
    assert said.startswith("the knee is at 4 streams: 290.0 tok/s in all, 2.9 times that of 1;")
    assert "16 streams change that by +3 %, and each token takes 3.9 times as long" in said
    assert knee_sentence(rows(tiny_model, {1: 100, 2: 190, 4: 350})).startswith("no knee up to 4 streams")
    assert knee_sentence(rows(tiny_model, {1: 100, 2: 99})).startswith("the knee is at 1 stream:")
    assert knee_sentence(rows(tiny_model, {1: 100})) == ""


def test_a_cold_start_ends_at_the_first_byte_and_a_failure_says_why() -> None:
    slow = "import sys, time; sys.stdout.write('x'); sys.stdout.flush(); time.sleep(600)"
    assert 0 < first_byte_s([sys.executable, "-c", slow]) < 300
    with pytest.raises(EngineError, match="no such model"):
        first_byte_s([sys.executable, "-c", "raise SystemExit('no such model')"])
