"""Results as a picture: speed by depth, throughput and latency by concurrency, bars of models."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmrun.bench.row import Row
from llmrun.errors import StoreError, UsageError

ENDINGS = (".png", ".svg")
Panel = tuple[Callable[[Any, Sequence[Row]], None], list[Row]]


def check_plot(path: Path, *, replace: bool) -> None:
    """Raise UsageError where nothing could be drawn there: asked before anything is measured."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot {path} ends in neither .png nor .svg")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed", 'pip install "llmrun[plot]"')
    if path.exists() and not replace:
        raise UsageError(f"{path} is there already", "take another name, or --force to replace it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.absolute().parent}")


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Write the picture, all or nothing. False where no row can be drawn. Raises StoreError."""
    from matplotlib.figure import Figure

    panels = _panels(rows)
    if not panels:
        return False
    figure = Figure(figsize=(6.4 * len(panels), 4.4), layout="constrained")
    for number, (paint, shown) in enumerate(panels, 1):
        paint(figure.add_subplot(1, len(panels), number), shown)
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix.lower()}")
    try:
        figure.savefig(partial, dpi=150)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {error}") from error
    return True


def _panels(rows: Sequence[Row]) -> list[Panel]:
    loops = [row for row in rows if row.kind == "loop"]
    served = [row for row in rows if row.kind == "concurrency"]
    panels: list[Panel] = []
    if len({row.depth for row in loops}) > 1:
        panels.append((_by_depth, loops))
    elif loops:
        panels.append((_bars, loops))
    if served:
        panels += [(_throughput, served), (_latency, served)]
    return panels


def _series(rows: Sequence[Row], test: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows by what differs between them, beside what the axis shows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        parts = [row.model, test(row)]
        for field in ("threads", "kv_type", "batch", "ubatch", "flash_attn", "gpu_layers"):
            if len({getattr(one, field) for one in rows}) > 1:
                parts.append(f"{field} {getattr(row, field)}")
        found.setdefault(" ".join(parts), []).append(row)
    return found


def _lines(
    axes: Any, rows: Sequence[Row], x: str, y: Callable[[Row], float | None], test: Callable[[Row], str]
) -> None:
    for name, series in _series(rows, test).items():
        points = sorted((getattr(row, x), y(row) or 0.0) for row in series)
        axes.plot([at for at, _ in points], [value for _, value in points], marker="o", label=name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _by_depth(axes: Any, rows: Sequence[Row]) -> None:
    _lines(axes, rows, "depth", lambda row: row.median_tps, lambda row: row.test.split(" @ ")[0])
    axes.set(title="speed by depth", xlabel="tokens before the test", ylabel="tok/s", ylim=(0, None))


def _throughput(axes: Any, rows: Sequence[Row]) -> None:
    _lines(axes, rows, "concurrency", lambda row: row.median_tps, lambda row: row.test)
    axes.set(title="throughput", xlabel="requests in flight", ylabel="tok/s, all together", ylim=(0, None))


def _latency(axes: Any, rows: Sequence[Row]) -> None:
    for share in ("p50", "p95"):
        _lines(
            axes,
            rows,
            "concurrency",
            lambda row, share=share: 1000 * (getattr(row, f"itl_{share}_s") or 0.0),  # type: ignore[misc]
            lambda row, share=share: f"{row.test} {share}",  # type: ignore[misc]
        )
    axes.set(title="time between tokens", xlabel="requests in flight", ylabel="ms", ylim=(0, None))


def _bars(axes: Any, rows: Sequence[Row]) -> None:
    names = [name for name, series in _series(rows, lambda row: row.test).items() for _ in series]
    shown = [row for series in _series(rows, lambda row: row.test).values() for row in series]
    axes.barh(
        range(len(shown)),
        [row.median_tps or 0.0 for row in shown],
        xerr=[row.sd_tps or 0.0 for row in shown],
        capsize=3,
    )
    axes.set_yticks(range(len(shown)), names)
    axes.invert_yaxis()
    axes.set(title="speed", xlabel="tok/s")
