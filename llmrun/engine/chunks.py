"""A text in chunks of n_ctx tokens through a model, several chunks at once, as llama-perplexity and llama-imatrix do.

Their batches are kept to the token: other batches round differently, and with it the third digit of a perplexity.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llmrun.engine.batch import Batch
from llmrun.engine.context import ABORTED, Context, ContextSettings
from llmrun.engine.model import Model
from llmrun.errors import EngineError, Interrupted

N_BATCH, N_UBATCH = 2048, 512


@dataclass(frozen=True)
class Span:
    """Positions [start, end) of each of `chunks` were computed, logits wanted from `first` on. `last`: the chunks are
    at their end."""

    chunks: range
    start: int
    end: int
    first: int
    last: bool

    @property
    def n_rows(self) -> int:
        """Rows of logits of each chunk; they come chunk after chunk."""
        return max(0, self.end - self.first)


class ChunkDecoder:
    """Each chunk is a sequence of its own, begun with BOS where the model wants one. Logits are computed from
    position `wanted_from` of each. `watch`: see Context."""

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        n_threads: int,
        *,
        wanted_from: int,
        stop: Callable[[], bool] | None = None,
        watch: Callable[[int, bool], bool] | None = None,
    ) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self._wanted_from = wanted_from
        self._stop = stop
        self.n_together = max(1, N_BATCH // n_ctx)
        n_batch = min(N_UBATCH, self.n_together * n_ctx)
        settings = ContextSettings(
            self.n_together * n_ctx,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_seq_max=self.n_together,
            n_threads=n_threads,
            n_outputs=n_batch,
            kv_unified=False,
        )
        self.context = Context(model, settings, watch)
        self._batch = Batch(n_batch)

    def run(self, tokens: Sequence[int], first_chunk: int = 0) -> Iterator[Span]:
        """Whole chunks of `tokens`. Raises Interrupted when stopped, EngineError."""
        n_chunks = len(tokens) // self.n_ctx
        for begin in range(first_chunk, n_chunks, self.n_together):
            chunks = range(begin, min(begin + self.n_together, n_chunks))
            self.context.clear()
            step = self._batch.n_tokens_max // len(chunks)
            for start in range(0, self.n_ctx, step):
                end = min(start + step, self.n_ctx)
                first = max(start, self._wanted_from)
                self._decode(tokens, chunks, start, end, first)
                yield Span(chunks, start, end, first, end == self.n_ctx)

    def _decode(self, tokens: Sequence[int], chunks: range, start: int, end: int, first: int) -> None:
        self._batch.clear()
        for seq, chunk in enumerate(chunks):
            part = list(tokens[chunk * self.n_ctx + start : chunk * self.n_ctx + end])
            if start == 0 and self.model.vocab.add_bos:
                part[0] = self.model.vocab.bos
            self._batch.add(part, start, seq, last_logits=False)
            self._batch.want(seq * (end - start) + min(first, end) - start, (seq + 1) * (end - start))
        status = self.context.decode(self._batch, self._stop)
        if status == ABORTED or (self._stop is not None and self._stop()):
            raise Interrupted("interrupted")
        if status:
            raise EngineError(f"llama.cpp could not decode a chunk: status {status}")

    def close(self) -> None:
        self._batch.close()
        self.context.close()
