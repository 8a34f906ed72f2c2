"""Log-probabilities of tokens, from the logits of one position."""

from typing import Any

from llmrun.engine.request import Logprob


def token_logprob(logits: Any, n_vocab: int, token: int, n_top: int) -> Logprob:
    """The natural log of the softmax over the raw logits (before any sampler), for `token` and the likeliest."""
    import numpy as np

    row = np.ctypeslib.as_array(logits, shape=(n_vocab,)).astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    top = np.argpartition(-row, min(n_top, n_vocab - 1))[:n_top]
    ordered = sorted(top.tolist(), key=lambda t: (-row[t], t))
    return Logprob(token, float(row[token]), tuple((t, float(row[t])) for t in ordered))
