"""A text's chunks through a model, as llama-perplexity does it: logits of the second half of each chunk."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrun.engine.batch import Batch
from llmrun.engine.context import ABORTED, Context, ContextSettings
from llmrun.engine.model import Model
from llmrun.errors import EngineError, Interrupted, UsageError

N_CTX = 512
_PIECE_BYTES = 32 << 20  # of logits: a vocabulary of 262k takes 1 MB a token
_N_UBATCH = 512


@dataclass(frozen=True, eq=False)
class Piece:
    """Logits (tokens, n_vocab), and the token that really followed each. `chunk` counts from 0."""

    chunk: int
    logits: "np.ndarray[Any, np.dtype[np.float32]]"
    targets: "np.ndarray[Any, np.dtype[np.int64]]"


def tokenize(model: Model, text: str, n_ctx: int, n_chunks: int | None) -> list[int]:
    """The tokens of whole chunks, at most `n_chunks`. Raises UsageError for a text of less than two chunks."""
    if n_ctx < 16 or n_ctx % 2:
        raise UsageError(f"chunks of {n_ctx} tokens cannot be halved", "give -c an even number from 16")
    if not model.has_decoder:
        raise UsageError(f"{model.path.name} predicts no next token", "perplexity is measured on language models")
    tokens = model.vocab.tokenize(text, add_special=True)
    if len(tokens) < 2 * n_ctx:
        raise UsageError(
            f"the text has {len(tokens)} tokens; chunks of {n_ctx} need at least {2 * n_ctx}",
            "give a longer text, or smaller chunks with -c",
        )
    count = len(tokens) // n_ctx
    return tokens[: n_ctx * min(count, n_chunks or count)]


class ChunkReader:
    """One model's predictions over the chunks of a text."""

    def __init__(self, model: Model, n_ctx: int, n_threads: int, stop: Callable[[], bool] | None = None) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self.n_vocab = model.vocab.n_tokens
        self._stop = stop
        n_batch = min(n_ctx, _N_UBATCH)
        settings = ContextSettings(
            n_ctx, n_batch=n_batch, n_ubatch=n_batch, n_threads=n_threads, n_outputs=min(n_ctx // 2, n_batch)
        )
        self._context = Context(model, settings)
        self._batch = Batch(settings.n_batch)

    def read(self, tokens: Sequence[int]) -> Iterator[Piece]:
        """Pieces of the second half of each chunk of `tokens`, in order. Raises Interrupted when stopped."""
        n_ctx, n_batch = self.n_ctx, self._batch.n_tokens_max
        rows = max(16, _PIECE_BYTES // (4 * self.n_vocab))
        for chunk in range(len(tokens) // n_ctx):
            part = list(tokens[chunk * n_ctx : (chunk + 1) * n_ctx])
            targets = np.array(part[1:])
            if self.model.vocab.add_bos:
                part[0] = self.model.vocab.bos
            self._context.clear()
            for start in range(0, n_ctx, n_batch):
                # Batches and wanted logits are llama-perplexity's: on other batches the rounding is another.
                first = max(n_ctx // 2, start)
                self._decode(part[start : start + n_batch], start, first - start)
                # The last token of a chunk predicts what is not in it.
                end = min(start + n_batch, n_ctx - 1)
                for row in range(first, end, rows):
                    piece = slice(row, min(row + rows, end))
                    yield Piece(chunk, self._logits(end - first)[row - first : piece.stop - first], targets[piece])

    def _decode(self, tokens: list[int], pos: int, first_wanted: int) -> None:
        self._batch.clear()
        self._batch.add(tokens, pos, 0, last_logits=False)
        self._batch.want(first_wanted)
        status = self._context.decode(self._batch, self._stop)
        if status == ABORTED:
            raise Interrupted("interrupted")
        if status:
            raise EngineError(f"llama.cpp could not decode a chunk: status {status}")

    def _logits(self, n: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Rows in llama.cpp's own memory, valid until the next decode."""
        address = ctypes.cast(self._context.all_logits(), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(address, (n, self.n_vocab))

    def close(self) -> None:
        self._batch.close()
        self._context.close()


def log_softmax(logits: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Natural logarithms of the probabilities, row by row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.subtract(shifted, np.log(total).astype(np.float32), out=shifted)
