"""A short measurement of prefill and decode speed, for a report's columns. `llmrun bench` measures with care."""

from typing import NamedTuple

from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.model import Model
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Finished, Request
from llmrun.engine.stats import measure

N_PROMPT, N_NEW, N_REPEATS = 128, 32, 3


class Speed(NamedTuple):
    """Tokens a second, the best of a few runs."""

    prefill_tps: float
    decode_tps: float


def measure_speed(model: Model, n_threads: int) -> Speed:
    """The first run warms up and is not counted."""
    with Context(model, ContextSettings(512, n_threads=n_threads)) as context:
        engine = Engine(context)
        runs = [_run(engine, start) for start in range(N_REPEATS + 1)][1:]
    return Speed(max(run.prefill_tps for run in runs), max(run.decode_tps for run in runs))


def _run(engine: Engine, start: int) -> Speed:
    # Each prompt begins with another token, so that nothing of it is in the cache.
    n_vocab = engine.model.vocab.n_tokens
    tokens = tuple((start + 1 + 7 * i) % n_vocab for i in range(N_PROMPT))
    engine.submit(Request(tokens, SamplingParams(temp=0, ignore_eos=True), N_NEW))
    while True:
        for event in engine.step():
            if isinstance(event, Finished):
                speed = measure(event)
                return Speed(speed.prefill_tps or 0.0, speed.decode_tps or 0.0)
