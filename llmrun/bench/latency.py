"""Latency rows: one request at a time as `run` answers it, and the start of a whole process to its first byte."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace

from llmrun.bench.grid import Case, Setting
from llmrun.bench.row import Row, make_row, with_samples
from llmrun.bench.samples import sample
from llmrun.bench.serving import Flight, Latency, Prompts, Wave, latency, stream_tps
from llmrun.bench.stop import Stop
from llmrun.bench.subject import Subject
from llmrun.engine.context import Context
from llmrun.engine.engine import Engine
from llmrun.engine.params import SamplingParams
from llmrun.engine.stats import measure, percentile
from llmrun.errors import EngineError

# As `run` samples by default, but for a seed and an answer of full length.
SAMPLING = SamplingParams(seed=1, ignore_eos=True)


def latency_row(subject: Subject, case: Case, context: Context, stop: Stop) -> Row:
    """Time to first token and between tokens of `case.repeats` requests; speeds are those of decoding."""
    prompts = Prompts(context.model.vocab.n_tokens, case.n_prompt, case.n_gen, 0, SAMPLING)
    waves: list[Wave] = []
    with closing(Engine(context)) as engine:
        flight = Flight(engine, prompts, 1, stop)

        def once() -> float:
            waves.append(flight.advance(1))
            return measure(waves[-1].finished[0]).decode_tps or 0.0

        samples = sample(once, case.repeats)
    name = f"run {case.n_prompt}+{case.n_gen}"
    row = make_row("latency", subject, case.setting, context.model.placed.layers, name, case.n_prompt, case.n_gen)
    return with_latency(replace(with_samples(row, samples), stream_tps=stream_tps(waves)), latency(waves))


def with_latency(row: Row, found: Latency) -> Row:
    """The row with its percentiles, and every time to first token."""
    fields = asdict(found)
    return replace(row, samples_ttft_s=fields.pop("ttft_s"), **fields)


def start_row(subject: Subject, setting: Setting, repeats: int, command: Sequence[str], stop: Stop) -> Row:
    """A whole process, from its start to the first byte of its answer. The first one, which brings the file into
    memory, is not counted."""
    times = []
    for _ in range(1 + repeats):
        with stop.waiting():
            times.append(first_byte_s(command))
    del times[0]
    row = make_row("start", subject, setting, 0, "cold start", 0, 1)
    return replace(
        row,
        samples_ttft_s=tuple(times),
        ttft_p50_s=percentile(times, 50),
        ttft_p95_s=percentile(times, 95),
        ttft_p99_s=percentile(times, 99),
    )


def first_byte_s(command: Sequence[str], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds until `command` writes to its standard output; it is then ended. Raises EngineError if none comes."""
    with tempfile.TemporaryFile() as said:
        started = clock()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said) as process:
            assert process.stdout is not None
            try:
                first = process.stdout.read(1)
                took = clock() - started
            finally:
                process.kill()
        if not first:
            said.seek(0)
            lines = said.read().decode("utf-8", "replace").strip().splitlines()
            raise EngineError(f"a new process gave no answer: {lines[-1] if lines else 'no reason given'}")
    return took
