"""How far a model's predictions are from a reference's: both read the text side by side, nothing is stored.

The figures are those of `llama-perplexity --kl-divergence`, without its rounding of the reference to 16 bits.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from llmrun.engine.model import Model
from llmrun.errors import UsageError
from llmrun.evals.chunks import ChunkReader, log_softmax, tokenize
from llmrun.evals.perplexity import Estimate, exp_mean, mean
from llmrun.report import Report


@dataclass(frozen=True)
class Divergence:
    """Of a model from a reference. KL divergence in nats a token; `same_top`: share of tokens whose likeliest next
    token is the same; `delta_p`: change of the probability of the token that really followed."""

    perplexity: Estimate
    reference_perplexity: Estimate
    ratio: Estimate
    kld_mean: Estimate
    kld_median: float
    kld_p99: float
    kld_max: float
    same_top: Estimate
    delta_p_mean: Estimate
    delta_p_rms: float
    n_ctx: int
    n_chunks: int
    n_tokens: int
    seconds: float
    tps: float


class Scores(NamedTuple):
    """One value a token: surprise of model and reference, their KL divergence, same top, change of probability."""

    nll: Any
    reference_nll: Any
    kld: Any
    same: Any
    delta_p: Any


def score(
    logits: "np.ndarray[Any, Any]", reference: "np.ndarray[Any, Any]", targets: "np.ndarray[Any, Any]"
) -> Scores:
    """From the logits of both, (tokens, n_vocab), and the token that really followed each."""
    logs, base = log_softmax(logits), log_softmax(reference)
    rows = np.arange(len(targets))
    kld = np.einsum("ij,ij->i", np.exp(base), base - logs, dtype=np.float64)
    own, other = logs[rows, targets].astype(np.float64), base[rows, targets].astype(np.float64)
    same = logs.argmax(axis=1) == base.argmax(axis=1)
    return Scores(-own, -other, kld, same, np.exp(own) - np.exp(other))


def measure_divergence(
    model: Model,
    reference: Model,
    text: str,
    *,
    report: Report,
    n_threads: int,
    n_ctx: int,
    n_chunks: int | None = None,
    stop: Callable[[], bool] | None = None,
    scoring: Callable[..., Scores] = score,
) -> Divergence:
    """One pass over both. Raises UsageError where the vocabularies differ or the text is too short.

    `scoring` may be another rule than `score`, such as that of a program to compare with."""
    tokens = tokenize(reference, text, n_ctx, n_chunks)
    if model.vocab.n_tokens != reference.vocab.n_tokens or tokenize(model, text, n_ctx, n_chunks) != tokens:
        raise UsageError(
            f"{model.path.name} and {reference.path.name} cut the text into different tokens",
            "compare files of one model",
        )
    readers = [ChunkReader(one, n_ctx, n_threads, stop) for one in (model, reference)]
    total, scores = len(tokens) // n_ctx, []
    started = time.perf_counter()
    try:
        for piece, other in zip(*(reader.read(tokens) for reader in readers), strict=True):
            report.progress("comparing", piece.n_done, total, "chunks")
            scores.append(scoring(piece.logits, other.logits, piece.targets))
    finally:
        for reader in readers:
            reader.close()
        report.progress("comparing", total, total, "chunks")
    seconds = time.perf_counter() - started
    joined = Scores(*(np.concatenate(parts) for parts in zip(*scores, strict=True)))
    return _summary(joined, n_ctx, total, seconds)


def _summary(scores: Scores, n_ctx: int, n_chunks: int, seconds: float) -> Divergence:
    share = float(scores.same.mean())
    n = len(scores.kld)
    return Divergence(
        perplexity=exp_mean(scores.nll),
        reference_perplexity=exp_mean(scores.reference_nll),
        ratio=exp_mean(scores.nll - scores.reference_nll),
        kld_mean=mean(scores.kld),
        kld_median=float(np.median(scores.kld)),
        kld_p99=float(np.quantile(scores.kld, 0.99)),
        kld_max=float(scores.kld.max()),
        same_top=Estimate(share, float(np.sqrt(share * (1 - share) / max(1, n - 1)))),
        delta_p_mean=mean(scores.delta_p),
        delta_p_rms=float(np.sqrt(np.mean(scores.delta_p**2))),
        n_ctx=n_ctx,
        n_chunks=n_chunks,
        n_tokens=n,
        seconds=seconds,
        tps=n_chunks * n_ctx / seconds,
    )
