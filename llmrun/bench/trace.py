"""Greedy answers with the logits behind each token: what two settings are compared by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmrun.bench.stop import Stop
from llmrun.engine.batch import Batch
from llmrun.engine.context import ABORTED, Context
from llmrun.errors import EngineError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Trace:
    """One prompt: the likeliest token at each step, and float32 logits of shape (steps, n_vocab)."""

    chosen: tuple[int, ...]
    logits: "np.ndarray[Any, Any]"


def trace(
    context: Context,
    prompts: Sequence[Sequence[int]],
    n_gen: int,
    stop: Stop,
    *,
    along: Sequence[Trace] | None = None,
    at_once: int = 1,
) -> list[Trace]:
    """Continue each prompt by `n_gen` tokens, `at_once` sequences in one pass. The tokens fed are those that
    `along` chose, so that logits stay comparable after a first difference; else each prompt's own.

    Raises Interrupted, EngineError."""
    traces: list[Trace] = []
    for start in range(0, len(prompts), at_once):
        end = start + at_once
        context.clear()
        traces += _Group(context, prompts[start:end], stop).run(n_gen, along[start:end] if along else None)
    return traces


class _Group:
    """Sequences 0, 1, ... that are decoded together."""

    def __init__(self, context: Context, prompts: Sequence[Sequence[int]], stop: Stop) -> None:
        self._context = context
        self._prompts = prompts
        self._stop = stop
        self._n_vocab = context.model.vocab.n_tokens

    def run(self, n_gen: int, along: Sequence[Trace] | None) -> list[Trace]:
        import numpy as np

        logits = np.empty((len(self._prompts), n_gen, self._n_vocab), dtype=np.float32)
        chosen: list[list[int]] = [[] for _ in self._prompts]
        feed = [list(prompt) for prompt in self._prompts]
        done = [0] * len(feed)
        for step in range(n_gen):
            rows = self._pass(feed, done)
            for seq, row in enumerate(rows):
                logits[seq, step] = row
                chosen[seq].append(int(row.argmax()))
                done[seq] += len(feed[seq])
                feed[seq] = [along[seq].chosen[step] if along else chosen[seq][-1]]
        return [Trace(tuple(tokens), logits[seq]) for seq, tokens in enumerate(chosen)]

    def _pass(self, feed: Sequence[Sequence[int]], done: Sequence[int]) -> list["np.ndarray[Any, Any]"]:
        """Decode the tokens of all sequences in one call; copies of the logits after each."""
        import numpy as np

        batch = Batch(sum(map(len, feed)))
        try:
            indices = [batch.add(feed[seq], done[seq], seq, last_logits=True) for seq in range(len(feed))]
            status = self._context.decode(batch, self._stop if len(feed[0]) > 1 else None)
        finally:
            batch.close()
        if status == ABORTED or self._stop():
            self._stop.check()
        if status:
            raise EngineError(f"llama.cpp could not decode: status {status}")
        return [np.ctypeslib.as_array(self._context.logits(index), (self._n_vocab,)).copy() for index in indices]
