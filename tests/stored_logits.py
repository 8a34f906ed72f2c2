"""Scores by the rule of `llama-perplexity --kl-divergence`, which keeps the reference as 16-bit steps in a file.

Written from its source to compare with its figures: steps of (largest - smallest) / 65535, nothing stored lower than
16 under the largest, and no share in the divergence for what has a probability of less than exp(-16).
"""

from typing import Any

import numpy as np

from llmrun.evals.chunks import log_softmax
from llmrun.evals.divergence import Scores


def stored(logits: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Log probabilities as they come back from such a file."""
    top = logits.max(axis=1, keepdims=True)
    low = np.maximum(logits.min(axis=1, keepdims=True), top - np.float32(16))
    total = np.log(np.exp(logits - top).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    scale = (top - low) / np.float32(65535)
    steps = np.where(logits > low, np.rint(np.float32(1) / scale * (logits - low)), np.float32(0))
    result: np.ndarray[Any, np.dtype[np.float32]] = scale * steps + (low - top - total)
    return result


def rounded_score(logits: Any, reference: Any, targets: Any) -> Scores:
    """As `llmrun.evals.divergence.score`, with the reference through `stored`."""
    logs, base = log_softmax(logits), stored(reference)
    rows = np.arange(len(targets))
    share = np.where(base > -16, np.exp(base), np.float32(0))
    kld = np.einsum("ij,ij->i", share, base - logs, dtype=np.float64)
    own, other = logs[rows, targets].astype(np.float64), base[rows, targets].astype(np.float64)
    same = logs.argmax(axis=1) == base.argmax(axis=1)
    return Scores(-own, -other, kld, same, np.exp(own) - np.exp(other))
