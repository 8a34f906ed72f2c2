"""Perplexity by llama.cpp's rule: chunks of n_ctx tokens, of which the second half is scored."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmrun.engine.model import Model
from llmrun.evals.chunks import ChunkReader, log_softmax, tokenize
from llmrun.report import Report


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Perplexity:
    """`n_tokens` were scored, in `seconds` all chunks' tokens computed (`tps` a second)."""

    perplexity: Estimate
    n_ctx: int
    n_chunks: int
    n_tokens: int
    seconds: float
    tps: float


def measure_perplexity(
    model: Model,
    text: str,
    *,
    report: Report,
    n_threads: int,
    n_ctx: int,
    n_chunks: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> Perplexity:
    """Raises UsageError for a text that is too short, Interrupted when `stop` says so."""
    tokens = tokenize(model, text, n_ctx, n_chunks)
    reader = ChunkReader(model, n_ctx, n_threads, stop)
    total, surprises = len(tokens) // n_ctx, []
    started = time.perf_counter()
    try:
        for piece in reader.read(tokens):
            report.progress("perplexity", piece.n_done, total, "chunks")
            rows = log_softmax(piece.logits)
            surprises.append(-rows[np.arange(len(rows)), piece.targets].astype(np.float64))
    finally:
        reader.close()
        report.progress("perplexity", total, total, "chunks")
    seconds = time.perf_counter() - started
    nll = np.concatenate(surprises)
    return Perplexity(exp_mean(nll), n_ctx, total, len(nll), seconds, len(tokens) / seconds)


def mean(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Estimate:
    n = len(values)
    return Estimate(float(values.mean()), float(np.sqrt(values.var() / max(1, n - 1))))


def exp_mean(nll: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Estimate:
    """exp of the mean, and the error that the mean's makes in it."""
    log = mean(nll)
    value = float(np.exp(log.value))
    return Estimate(value, value * log.error)
