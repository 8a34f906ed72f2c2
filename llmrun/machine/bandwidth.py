"""How fast this machine's cores read memory together, measured once and kept: the bound on decode speed."""

import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from llmrun.machine.cores import Cores, cpu_name
from llmrun.machine.load import CpuReading
from llmrun.paths import state_dir

# Past the last-level cache of nearly every machine, without taking memory that a small one lacks.
LARGEST_BYTES = 512 << 20
ROUNDS = 5
QUIET_CORES = 0.3  # kept busy by others: beyond it a measurement says less than the machine can


@dataclass(frozen=True)
class Bandwidth:
    """`busy_cores` were kept busy by other programs meanwhile: with more than a few tenths, it is too low."""

    bytes_per_s: float
    busy_cores: float

    @property
    def is_quiet(self) -> bool:
        return self.busy_cores < QUIET_CORES


def memory_bandwidth(cores: Cores, total_bytes: int, fresh: bool = False) -> Bandwidth:
    """What `cores.usable` threads read together; from the state folder where a quiet measurement is kept there."""
    key = f"{cpu_name()} | {cores.usable} cores | {round(total_bytes / 1e9)} GB"
    known = _load().get(key)
    if known is not None and not fresh:
        return Bandwidth(known, 0.0)
    measured = measure_bandwidth(cores, total_bytes)
    if measured.is_quiet:
        keep(key, measured)
    return measured


def measure_bandwidth(cores: Cores, total_bytes: int) -> Bandwidth:
    """The best of a few rounds in which each thread reads its own part of one large array."""
    import numpy as np

    size = min(LARGEST_BYTES, max(64 << 20, total_bytes // 16))
    parts = np.array_split(np.ones(size // 8, dtype=np.int64), cores.usable)
    before = CpuReading.now()
    best_s = float("inf")
    for _ in range(ROUNDS):
        # numpy releases the GIL in a reduction, and max of int64 is as fast as memchr on x86 and Arm.
        workers = [threading.Thread(target=part.max) for part in parts]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best_s = min(best_s, time.perf_counter() - started)
    return Bandwidth(size / best_s, CpuReading.now().busy_cores_since(before, cores.cpus))


def keep(key: str, bandwidth: Bandwidth) -> None:
    """Write it to the state folder. One that cannot be written costs a measurement next time, and nothing else."""
    path = _path()
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({**_load(), key: bandwidth.bytes_per_s}, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()


def _path() -> Path:
    return state_dir() / "bandwidth.json"


def _load() -> dict[str, float]:
    try:
        known = json.loads(_path().read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in known.items() if float(value) > 0}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
