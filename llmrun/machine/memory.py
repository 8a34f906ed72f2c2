"""RAM, and how much of it this process may still take: the host's, its container's and its shell's limits."""

import sys
from pathlib import Path
from typing import NamedTuple

from llmrun.machine import cgroup
from llmrun.machine.kernel_files import read, read_table


class Memory(NamedTuple):
    """`free_bytes` is the least of what the host has available and what each limit leaves."""

    total_bytes: int
    available_bytes: int  # of the host: free pages and what it can reclaim
    limit_bytes: int | None  # the limit that decides `free_bytes`, if one does
    limit_name: str  # "container limit", "ulimit -v", or ""
    free_bytes: int


def read_memory(proc: Path = Path("/proc"), cgroup_root: Path = cgroup.ROOT) -> Memory:
    """The memory of this machine as this process may use it."""
    if sys.platform != "linux":
        import psutil

        host = psutil.virtual_memory()
        return Memory(host.total, host.available, None, "", host.available)
    table = read_table(proc / "meminfo")
    total, available = table.get("MemTotal", 0), table.get("MemAvailable", table.get("MemFree", 0))
    bounds: list[tuple[int, int | None, str]] = [(available, None, "")]
    container = cgroup.memory_limit(cgroup_root, proc)
    if container is not None and container.limit < total:
        bounds.append((container.limit - container.used, container.limit, "container limit"))
    address_space = _address_space()
    if address_space is not None:
        allowed, taken = address_space
        bounds.append((allowed - taken, allowed, "ulimit -v"))
    free, limit, name = min(bounds, key=lambda bound: bound[0])
    return Memory(total, available, limit, name, max(0, free))


def peak_rss_bytes(proc: Path = Path("/proc")) -> int:
    """The most memory this process has held, mapped files included."""
    if sys.platform == "linux":  # getrusage counts what the parent held before it started this process
        for line in read(proc / "self/status").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        import psutil

        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def _address_space() -> tuple[int, int] | None:
    """What `ulimit -v` allows and how much of it is taken, mapped files included."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = read(Path("/proc/self/statm")).split()
    return limit, int(pages[0]) * resource.getpagesize() if pages else 0
