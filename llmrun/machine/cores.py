"""How many cores serve this process best: performance cores inside its affinity mask and CPU quota."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

from llmrun.machine import cgroup
from llmrun.machine.kernel_files import cpu_list, read, read_int

SYS = Path("/sys")


class Cores(NamedTuple):
    """Counts of CPUs. Hyper-threads and efficiency cores do not count as `usable`, which is never 0."""

    logical: int  # hardware threads of the machine
    physical: int  # cores of the machine
    performance: int  # of these the fast ones; equal to `physical` where all are alike
    allowed: int  # performance cores inside the affinity mask
    quota: float | None  # cores that the container's CPU quota allows
    usable: int  # the lesser of the two
    cpus: tuple[int, ...]  # hardware threads in the affinity mask, where known
    reason: str  # what decided `usable`


def read_cores() -> Cores:
    """This machine's cores."""
    if sys.platform == "darwin":
        return count_cores(*_darwin(), _affinity(), None)
    if sys.platform == "win32":
        return count_cores(*_windows(), _affinity(), None)
    return count_cores(*linux_topology(SYS, os.cpu_count()), _affinity(), cgroup.cpu_quota())


def count_cores(
    cores: list[frozenset[int]], fast: list[frozenset[int]], mask: frozenset[int], quota: float | None
) -> Cores:
    """`cores`: the hardware threads of each physical core; `fast`: those of them that are performance cores;
    `mask`: the hardware threads that the process may use, empty where the system has no such thing.
    """
    inside = [core for core in fast if core & mask] or [core for core in cores if core & mask] or fast
    allowed = max(1, len(inside))
    kind = "performance" if len(fast) < len(cores) else "physical"
    reason = f"{allowed} {kind} core{'s' if allowed > 1 else ''}"
    if len(inside) < len(fast):
        reason += " inside the affinity mask"
    usable = allowed
    if quota is not None and quota < allowed:
        usable = max(1, int(quota))
        reason = f"CPU quota of {quota:g} cores"
    return Cores(
        logical=max(1, sum(len(core) for core in cores)),
        physical=max(1, len(cores)),
        performance=max(1, len(fast)),
        allowed=allowed,
        quota=quota,
        usable=usable,
        cpus=tuple(sorted(mask)),
        reason=reason,
    )


def cpu_name(proc: Path = Path("/proc")) -> str:
    """The processor as its maker names it."""
    name = _sysctl_text("machdep.cpu.brand_string") if sys.platform == "darwin" else ""
    for line in _head(proc / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            name = name or value.strip()
    if name:
        return name
    import platform

    return platform.processor() or platform.machine()


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    if sys.platform == "win32":
        import psutil

        return frozenset(psutil.Process().cpu_affinity() or ())
    return frozenset()


def linux_topology(sys_root: Path, cpu_count: int | None) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """The hardware threads of each core, and those of each performance core. `cpu_count` serves where
    /sys is not there; None (unknown) is one CPU.
    """
    base = sys_root / "devices/system/cpu"
    online = cpu_list(read(base / "online")) or list(range(cpu_count or 1))
    cores: list[frozenset[int]] = []
    seen: set[int] = set()
    for cpu in online:
        if cpu in seen:
            continue
        topology = base / f"cpu{cpu}/topology"
        # thread_siblings_list is the name that kernels before 5.4 have for it.
        siblings = read(topology / "core_cpus_list") or read(topology / "thread_siblings_list")
        core = (frozenset(cpu_list(siblings)) & frozenset(online)) | {cpu}
        seen |= core
        cores.append(core)
    return cores, _fast(sys_root, base, cores)


def _fast(sys_root: Path, base: Path, cores: list[frozenset[int]]) -> list[frozenset[int]]:
    """Intel's hybrid chips list their performance CPUs as a device; Arm's carry a capacity of up to 1024."""
    listed = frozenset(cpu_list(read(sys_root / "devices/cpu_core/cpus")))
    if listed:
        return [core for core in cores if core & listed] or cores
    capacity = [read_int(base / f"cpu{min(core)}/cpu_capacity") or 0 for core in cores]
    # Middle cores of three-tier Arm chips have two thirds of the largest's capacity, small ones a third.
    return [core for core, value in zip(cores, capacity, strict=True) if value * 2 > max(capacity)] or cores


def _darwin() -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    """macOS lets no one ask for an affinity, so only the counts matter."""
    physical = _sysctl_int("hw.physicalcpu") or os.cpu_count() or 1
    fast = _sysctl_int("hw.perflevel0.physicalcpu") or physical
    cores = _numbered(physical, _sysctl_int("hw.logicalcpu") or physical)
    return cores, cores[:fast]


def _windows() -> tuple[list[frozenset[int]], list[frozenset[int]]]:
    import psutil

    logical = os.cpu_count() or 1
    cores = _numbered(psutil.cpu_count(logical=False) or logical, logical)
    return cores, cores


def _numbered(physical: int, logical: int) -> list[frozenset[int]]:
    """Cores whose hardware threads are numbered next to each other, as Windows numbers them."""
    width = max(1, logical // physical)
    return [frozenset(range(core * width, (core + 1) * width)) for core in range(physical)]


def _head(path: Path) -> str:
    """The first lines only: /proc/cpuinfo of a large server takes long to make."""
    try:
        with path.open("rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _sysctl_int(name: str) -> int | None:
    raw = _sysctl(name)
    return int.from_bytes(raw, "little") if raw else None


def _sysctl_text(name: str) -> str:
    return _sysctl(name).split(b"\0")[0].decode("utf-8", "replace")


def _sysctl(name: str) -> bytes:
    import ctypes

    call = ctypes.CDLL(None).sysctlbyname
    size = ctypes.c_size_t(256)
    buffer = ctypes.create_string_buffer(size.value)
    failed = call(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return b"" if failed else buffer.raw[: size.value]
