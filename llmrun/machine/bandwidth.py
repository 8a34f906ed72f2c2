"""How fast this machine's cores read memory together, measured once and kept: the bound on decode speed."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path

from llmrun.machine.cores import Cores, cpu_name
from llmrun.paths import state_dir

# Past the last-level cache of all but the largest servers, without taking memory that a small one lacks.
LARGEST_BYTES = 1 << 30
ROUNDS = 5


def memory_bandwidth(cores: Cores, total_bytes: int, fresh: bool = False) -> float:
    """Bytes per second that `cores.usable` threads read together; from the state folder where it is known."""
    path = state_dir() / "bandwidth.json"
    key = f"{cpu_name()} | {cores.usable} cores | {round(total_bytes / 1e9)} GB"
    known = _load(path)
    if fresh or key not in known:
        known[key] = measure_bandwidth(cores.usable, total_bytes)
        _save(path, known)
    return known[key]


def measure_bandwidth(threads: int, total_bytes: int) -> float:
    """The best of a few rounds in which each thread reads its own part of one large array."""
    import numpy as np

    size = min(LARGEST_BYTES, max(64 << 20, total_bytes // 16))
    parts = np.array_split(np.ones(size // 8, dtype=np.int64), threads)
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
    return size / best_s


def _load(path: Path) -> dict[str, float]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in known.items() if float(value) > 0}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _save(path: Path, known: dict[str, float]) -> None:
    """A state folder that cannot be written costs a measurement next time, and nothing else."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
