"""Times prefill and decode of random tokens, as llama-bench does: no sampling, no tokenizing, a warm-up first."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from llmrun.bench.grid import Case
from llmrun.bench.samples import sample
from llmrun.bench.stop import Stop
from llmrun.engine.batch import Batch
from llmrun.engine.context import ABORTED, Context
from llmrun.errors import EngineError

SEED = 1


class Loop:
    """Decodes into one sequence of a context. Random tokens and their batches are made outside the time."""

    def __init__(self, context: Context, stop: Stop) -> None:
        self.context = context
        self._stop = stop
        self._random = random.Random(SEED)
        self._one = Batch(1)
        model = context.model
        # Where cells may be gone with the window, or state cannot go back, the prefix is computed anew.
        self._rewinds = not model.n_swa and not model.is_recurrent

    def tokens(self, n: int) -> list[int]:
        return [self._random.randrange(self.context.model.vocab.n_tokens) for _ in range(n)]

    def batches(self, n: int, pos: int) -> list[Batch]:
        """`n` tokens from position `pos` on, cut as the context takes them."""
        made = []
        for start in range(0, n, self.context.settings.n_batch):
            size = min(n - start, self.context.settings.n_batch)
            batch = Batch(size)
            batch.add(self.tokens(size), pos + start, 0, last_logits=True)
            made.append(batch)
        return made

    def prefill(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._decode(batch, self._stop)
        self.context.synchronize()

    def decode(self, tokens: Sequence[int], pos: int) -> None:
        """One at a time."""
        for token in tokens:
            self._stop.check()
            self._one.clear()
            self._one.add([token], pos, 0, last_logits=True)
            self._decode(self._one, None)
            self.context.synchronize()
            pos += 1

    def rewind(self, depth: int, prefix: Sequence[Batch]) -> None:
        """Leave exactly the `depth` tokens of `prefix` in the cache."""
        if depth and self._rewinds and self.context.remove(0, depth):
            return
        self.context.clear()
        self.prefill(prefix)

    def _decode(self, batch: Batch, stop: Stop | None) -> None:
        status = self.context.decode(batch, stop)
        if status == ABORTED:
            self._stop.check()
        if status:
            raise EngineError(f"llama.cpp could not decode {batch.raw.n_tokens} tokens: status {status}")

    def close(self) -> None:
        self._one.close()


class Timing:
    """One test over one context, warmed up: each `once` is a repeat. Close it before the context."""

    def __init__(
        self, context: Context, case: Case, stop: Stop, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Raises Interrupted, EngineError."""
        self._case = case
        self._clock = clock
        self._loop = loop = Loop(context, stop)
        self._prefix = loop.batches(case.depth, 0)
        self._prompt = loop.batches(case.n_prompt, case.depth)
        context.clear()
        loop.prefill(self._prefix)
        loop.prefill(self._prompt)
        loop.decode(loop.tokens(min(case.n_gen, 1)), case.depth + case.n_prompt)

    def once(self) -> float:
        """Tokens per second of one repeat; the prefix is put back outside the time."""
        case = self._case
        self._loop.rewind(case.depth, self._prefix)
        tokens = self._loop.tokens(case.n_gen)
        started = self._clock()
        self._loop.prefill(self._prompt)
        self._loop.decode(tokens, case.depth + case.n_prompt)
        return (case.n_prompt + case.n_gen) / (self._clock() - started)

    def close(self) -> None:
        for batch in (*self._prefix, *self._prompt):
            batch.close()
        self._loop.close()


def measure_case(
    context: Context, case: Case, stop: Stop, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, ...]:
    """Tokens per second of each repeat. Raises Interrupted, EngineError."""
    with closing(Timing(context, case, stop, clock)) as timing:
        return sample(timing.once, case.repeats)
