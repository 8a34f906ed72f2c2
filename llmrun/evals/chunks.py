"""A text's chunks through a model, as llama-perplexity does it: logits of the second half of each chunk."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrun.engine.chunks import ChunkDecoder
from llmrun.engine.model import Model
from llmrun.errors import UsageError

N_CTX = 512
_PIECE_BYTES = 32 << 20  # of logits: a vocabulary of 262k takes 1 MB a token


@dataclass(frozen=True, eq=False)
class Piece:
    """Logits (tokens, n_vocab), and the token that really followed each. `n_done` chunks came before."""

    n_done: int
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
        self._decoder = ChunkDecoder(model, n_ctx, n_threads, wanted_from=n_ctx // 2, stop=stop)
        self._n_vocab = model.vocab.n_tokens

    def read(self, tokens: Sequence[int]) -> Iterator[Piece]:
        """Pieces of the second half of each chunk of `tokens`. Raises Interrupted when stopped."""
        n_ctx = self._decoder.n_ctx
        n_piece = max(16, _PIECE_BYTES // (4 * self._n_vocab))
        following = np.array(tokens[1:])
        for span in self._decoder.run(tokens):
            if not span.n_rows:
                continue
            logits = self._logits(len(span.chunks) * span.n_rows)
            for seq, chunk in enumerate(span.chunks):
                # The last token of a chunk predicts what is not in it.
                n_scored = min(span.end, n_ctx - 1) - span.first
                rows = logits[seq * span.n_rows : seq * span.n_rows + n_scored]
                targets = following[chunk * n_ctx + span.first :][:n_scored]
                for at in range(0, n_scored, n_piece):
                    yield Piece(span.chunks.start, rows[at : at + n_piece], targets[at : at + n_piece])

    def _logits(self, n: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Rows in llama.cpp's own memory, valid until the next decode."""
        address = ctypes.cast(self._decoder.context.all_logits(), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(address, (n, self._n_vocab))

    def close(self) -> None:
        self._decoder.close()


def log_softmax(logits: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Natural logarithms of the probabilities, row by row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    shifted -= np.log(total).astype(np.float32)
    result: np.ndarray[Any, np.dtype[np.float32]] = shifted
    return result
