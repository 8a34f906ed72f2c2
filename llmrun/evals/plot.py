"""A picture of a comparison: size against loss, the files that none beats joined by a line."""

from pathlib import Path

from llmrun.evals.comparison import Comparison
from llmrun.quant.outputs import replacing


def draw(comparison: Comparison, target: Path) -> None:
    """Written whole or not at all, in the format that the name's ending says (PNG where it has none)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    best = sorted((row for row in comparison.rows if row.best), key=lambda row: row.size_bytes)
    axes.plot([row.size_bytes / 1e6 for row in best], [row.loss for row in best], "--", color="0.6", zorder=1)
    for row in comparison.rows:
        place = (row.size_bytes / 1e6, row.loss)
        axes.scatter(*place, color="tab:green" if row.best else "tab:gray", zorder=2)
        axes.annotate(Path(row.name).stem, place, xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("size, MB")
    axes.set_ylabel("KL divergence, nats a token" if comparison.reference else "perplexity")
    figure.tight_layout()
    with replacing(target) as part:
        figure.savefig(part, format=target.suffix.removeprefix(".") or "png", dpi=150)
