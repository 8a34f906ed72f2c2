"""The cores that other programs keep busy, from two readings of the kernel's counters: nothing waits."""

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from llmrun.machine.kernel_files import read

TICK_S = 0.01  # of /proc/stat, on every architecture that llama.cpp runs on
SHORTEST_S = 0.05  # a few ticks: below it the counters say nothing


class CpuReading(NamedTuple):
    """Seconds since the machine started: `busy_s` of CPU per hardware thread, `own_s` of this process."""

    wall_s: float
    busy_s: dict[int, float]
    own_s: float

    @classmethod
    def now(cls, proc: Path = Path("/proc")) -> "CpuReading":
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return cls(time.monotonic(), _busy_linux(proc) if sys.platform == "linux" else _busy(), own_s)

    def busy_cores_since(self, earlier: "CpuReading", cpus: tuple[int, ...] = ()) -> float:
        """Cores kept busy between two readings by all programs but this one, on `cpus` (empty: on all).

        0 where the readings are too close for the counters to say anything.
        """
        wall_s = self.wall_s - earlier.wall_s
        if wall_s < SHORTEST_S:
            return 0.0
        chosen = set(cpus) or set(self.busy_s)
        busy_s = sum(self.busy_s[cpu] - earlier.busy_s.get(cpu, 0.0) for cpu in self.busy_s if cpu in chosen)
        return max(0.0, busy_s - (self.own_s - earlier.own_s)) / wall_s


def _busy_linux(proc: Path) -> dict[int, float]:
    """user, nice, system, irq, softirq and steal of each CPU; not idle, iowait, nor guest (it is in user)."""
    busy: dict[int, float] = {}
    for line in read(proc / "stat").splitlines():
        if not line.startswith("cpu"):
            break
        name, *fields = line.split()
        if name != "cpu" and len(fields) >= 8:
            ticks = [int(field) for field in fields[:8]]
            busy[int(name[3:])] = (sum(ticks) - ticks[3] - ticks[4]) * TICK_S
    return busy


def _busy() -> dict[int, float]:
    import psutil

    times = psutil.cpu_times(percpu=True)
    return {cpu: sum(t) - t.idle - getattr(t, "iowait", 0.0) for cpu, t in enumerate(times)}
