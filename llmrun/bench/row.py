"""One line of results: what was tested, every sample, and what follows from them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmrun.bench.grid import Case, Setting
from llmrun.bench.samples import deviation, mean, median, spread
from llmrun.bench.subject import Subject

KINDS = ("loop", "latency", "concurrency", "start")


@dataclass(frozen=True)
class Row:
    """Times in seconds, speeds in tokens per second, None where a test has no such number. `kind` is loop (pp and
    tg), latency, concurrency or start. `samples_tps` of concurrency rows count all streams together. `bound` says
    what holds the test back; `busy_cores` were kept busy by other programs meanwhile."""

    kind: str
    model: str
    sha256: str
    quant: str
    size_bytes: int
    n_params: int
    test: str
    n_prompt: int
    n_gen: int
    depth: int
    concurrency: int
    threads: int
    batch: int
    ubatch: int
    gpu_layers: int
    kv_type: str
    flash_attn: str
    samples_tps: tuple[float, ...] = ()
    mean_tps: float | None = None
    median_tps: float | None = None
    sd_tps: float | None = None
    stream_tps: float | None = None
    samples_ttft_s: tuple[float, ...] = ()
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None
    queue_p50_s: float | None = None
    queue_p95_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    bandwidth_share: float | None = None
    bound: str | None = None
    busy_cores: float = 0.0

    @property
    def label(self) -> str:
        """The test's name, with the number of streams where rows differ in it."""
        return f"{self.test} x{self.concurrency}" if self.kind == "concurrency" else self.test

    @property
    def spread(self) -> float:
        return spread(self.samples_tps)


def make_row(
    kind: str, subject: Subject, setting: Setting, gpu_layers: int, test: str, n_prompt: int, n_gen: int
) -> Row:
    """A row without results; `gpu_layers` is what was really placed."""
    info, (k_type, v_type) = subject.info, setting.kv_type
    return Row(
        kind=kind,
        model=subject.name,
        sha256=subject.sha256,
        quant=info.quant,
        size_bytes=info.size_bytes,
        n_params=info.n_params,
        test=test,
        n_prompt=n_prompt,
        n_gen=n_gen,
        depth=0,
        concurrency=1,
        threads=setting.n_threads,
        batch=setting.n_batch,
        ubatch=setting.n_ubatch,
        gpu_layers=gpu_layers,
        kv_type=k_type if k_type == v_type else f"{k_type}/{v_type}",
        flash_attn=setting.flash_attn,
    )


def loop_row(subject: Subject, case: Case, gpu_layers: int, samples: Sequence[float]) -> Row:
    row = make_row("loop", subject, case.setting, gpu_layers, case.name, case.n_prompt, case.n_gen)
    return with_samples(replace(row, depth=case.depth), samples)


def with_samples(row: Row, samples: Sequence[float]) -> Row:
    """The row with tokens per second filled in."""
    return replace(
        row,
        samples_tps=tuple(samples),
        mean_tps=mean(samples),
        median_tps=median(samples),
        sd_tps=deviation(samples),
    )
