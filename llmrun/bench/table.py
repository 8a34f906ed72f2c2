"""Rows as cells of tables, in llama-bench's shape, and the sentences below them. Pure; nothing is printed here."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from llmrun.bench.compare import Difference
from llmrun.bench.drift import Drift, sentence
from llmrun.bench.row import Row
from llmrun.bench.samples import STEADY
from llmrun.report import size_text

BUSY_CORES = 0.3
BAR_CELLS = 12


@dataclass(frozen=True)
class Table:
    """Cells as text; `right` names the columns of numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...]


Column = tuple[str, Callable[[Row], str]]

# Shown only where they are not the default or differ between rows, as in llama-bench.
_OPTIONAL: tuple[tuple[str, str, object], ...] = (
    ("batch", "n_batch", 2048),
    ("ubatch", "n_ubatch", 512),
    ("kv_type", "kv_type", "f16"),
    ("flash_attn", "fa", "auto"),
)


def loop_table(rows: Sequence[Row], backend: str, *, bars: bool) -> Table:
    """pp and tg rows: `model | size | params | backend | threads | ... | test | t/s`."""
    columns = [
        *_setting_columns(rows, backend),
        ("t/s", lambda row: f"{row.mean_tps or 0:.2f} ± {row.sd_tps or 0:.2f}"),
        ("median", lambda row: f"{row.median_tps or 0:.2f}"),
        ("GB/s", lambda row: _number(row.bandwidth_bytes_per_s, 1e-9, 1)),
        ("of memory", lambda row: _share(row.bandwidth_share)),
        ("bound by", lambda row: row.bound or ""),
    ]
    return _table(rows, [*columns, *_bars(rows, bars)])


def latency_table(rows: Sequence[Row], backend: str) -> Table:
    """Latency and start rows: time to first token and between tokens, in milliseconds."""
    return _table(
        rows,
        [
            *_setting_columns(rows, backend),
            *_times("ttft", ("p50", "p95")),
            *_times("itl", ("p50", "p95", "p99")),
            ("decode t/s", lambda row: _number(row.median_tps, 1, 1)),
        ],
    )


def concurrency_table(rows: Sequence[Row], backend: str, *, bars: bool) -> Table:
    """One row for each number of requests in flight."""
    columns: list[Column] = [
        *_setting_columns(rows, backend),
        ("streams", lambda row: str(row.concurrency)),
        ("total t/s", lambda row: f"{row.mean_tps or 0:.1f} ± {row.sd_tps or 0:.1f}"),
        ("t/s each", lambda row: _number(row.stream_tps, 1, 1)),
        *_times("ttft", ("p50", "p95")),
        *_times("itl", ("p50", "p95", "p99")),
        ("queue p95 ms", lambda row: _number(row.queue_p95_s, 1000, 1)),
        ("of memory", lambda row: _share(row.bandwidth_share)),
    ]
    return _table(rows, [*columns, *_bars(rows, bars)])


def difference_table(found: Sequence[Difference], names: tuple[str, str]) -> Table:
    """Two sets of results side by side; `names` are theirs."""

    def both(values: tuple[float, float], unit: str) -> str:
        digits = 3 if unit == "s" else 2
        return f"{values[0]:.{digits}f} ± {values[1]:.{digits}f}"

    rows = tuple(
        (
            one.model,
            one.test,
            one.unit,
            both(one.before, one.unit),
            both(one.after, one.unit),
            f"{one.ratio:.3f}",
            one.verdict,
        )
        for one in found
    )
    return Table(("model", "test", "unit", *names, "ratio", "verdict"), rows, (*names, "ratio"))


def drift_table(found: Sequence[Drift]) -> Table:
    """What each changed setting does to the answers."""
    rows = tuple(
        (
            one.model,
            one.variant,
            "none" if one.first_difference is None else str(one.first_difference),
            f"{one.logit_difference:.2g}",
            f"{one.kl_mean:.1e}" if one.kl_mean else "0",
            f"{one.kl_max:.1e}" if one.kl_max else "0",
            f"{100 * one.same_top:.1f} %",
            sentence(one),
        )
        for one in found
    )
    names = ("differs at token", "logits by", "KL mean", "KL max", "same top")
    return Table(("model", "changed", *names, "result"), rows, names)


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    names = tuple(name for name, _ in columns)
    cells = tuple(tuple(show(row) for _, show in columns) for row in rows)
    text = ("model", "backend", "kv_type", "fa", "test", "bound by", "")
    return Table(names, cells, tuple(name for name in names if name not in text))


def _setting_columns(rows: Sequence[Row], backend: str) -> list[Column]:
    columns: list[Column] = [
        ("model", lambda row: f"{row.model} {row.quant}" if row.quant not in row.model else row.model),
        ("size", lambda row: size_text(row.size_bytes)),
        ("params", lambda row: params_text(row.n_params)),
        ("backend", lambda _row: backend),
    ]
    if any(row.gpu_layers for row in rows):
        columns.append(("ngl", lambda row: str(row.gpu_layers)))
    columns.append(("threads", lambda row: str(row.threads)))
    for field, name, default in _OPTIONAL:
        if any(getattr(row, field) != default for row in rows):
            columns.append((name, lambda row, field=field: str(getattr(row, field))))  # type: ignore[misc]
    columns.append(("test", lambda row: row.test))
    return columns


def _times(kind: str, shares: Sequence[str]) -> list[Column]:
    return [
        (f"{kind} {share} ms", lambda row, field=f"{kind}_{share}_s": _number(getattr(row, field), 1000, 1))  # type: ignore[misc]
        for share in shares
    ]


def _bars(rows: Sequence[Row], wanted: bool) -> list[Column]:
    fastest = max((row.mean_tps or 0.0 for row in rows), default=0.0)
    if not wanted or not fastest or len(rows) < 2:
        return []
    return [("", lambda row: "█" * max(1, round(BAR_CELLS * (row.mean_tps or 0.0) / fastest)))]


def _number(value: float | None, factor: float, digits: int) -> str:
    return "" if value is None else f"{value * factor:.{digits}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def params_text(n: int) -> str:
    """`134.52 M`, `7.24 B`, as llama-bench has it."""
    return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.2f} M"


def markdown(table: Table) -> list[str]:
    """Lines of a Markdown table."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = [("-" * 10 + ":") if name in table.right else "-" * 11 for name in table.columns]
    return [line(table.columns), line(rule), *map(line, table.rows)]


def csv_fields(row: Row) -> dict[str, str]:
    """Every field as text; samples are separated by spaces."""
    fields = {}
    for name, value in asdict(row).items():
        if isinstance(value, tuple):
            value = " ".join(f"{sample:.6g}" for sample in value)
        fields[name] = "" if value is None else str(value)
    return fields


def warnings(rows: Sequence[Row]) -> list[str]:
    """What makes the numbers doubtful, in words."""
    said = []
    for row in rows:
        if row.spread > STEADY:
            said.append(
                f"warning: {row.model} {row.label} jumps by {100 * row.spread:.0f} % between {len(row.samples_tps)} "
                f"repeats ({min(row.samples_tps):.1f} to {max(row.samples_tps):.1f} tok/s): trust the median"
            )
    busy = max((row.busy_cores for row in rows), default=0.0)
    if busy >= BUSY_CORES:
        said.append(
            f"warning: the machine was busy: other programs kept up to {busy:.1f} cores at work during the tests, "
            "so it can do more than this"
        )
    return said
