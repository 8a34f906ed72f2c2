"""Several files of one model side by side: size, quality, speed, and which of them no other beats."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmrun.evals.divergence import Divergence


@dataclass(frozen=True)
class Row:
    """One file. Without a reference `divergence` is None and `perplexity` is its own. `best`: no other file is both
    smaller and better."""

    name: str
    path: str
    quant: str
    size_bytes: int
    bits_per_weight: float
    perplexity: float
    perplexity_error: float
    divergence: Divergence | None
    prefill_tps: float
    decode_tps: float
    best: bool = False

    @property
    def loss(self) -> float:
        """What quality is compared by: KL divergence where there is a reference, else perplexity."""
        return self.divergence.kld_mean.value if self.divergence else self.perplexity


@dataclass(frozen=True)
class Comparison:
    """`reference` names the file that divergence is measured from, "" for none; `text` what was measured on."""

    reference: str
    text: str
    n_ctx: int
    n_chunks: int
    rows: tuple[Row, ...]


def mark_best(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Pareto: a row is marked where each other one is larger or worse (or the same)."""
    return tuple(replace(row, best=not any(_beats(other, row) for other in rows)) for row in rows)


def _beats(a: Row, b: Row) -> bool:
    no_worse = a.size_bytes <= b.size_bytes and a.loss <= b.loss
    return no_worse and (a.size_bytes < b.size_bytes or a.loss < b.loss)
