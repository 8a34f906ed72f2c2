"""A container's limits, from control groups of version 1 and 2, nested ones included."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from llmrun.machine.kernel_files import read, read_int, read_table

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


class MemoryLimit(NamedTuple):
    """Bytes. Page cache is not counted as used: the kernel gives it up when memory is asked for."""

    limit: int
    used: int


def cpu_quota(root: Path = ROOT, proc: Path = PROC) -> float | None:
    """The cores that the process may use at once: 1.5 for `--cpus 1.5`, the least over nested groups."""
    quotas = [_v2_quota(group) for group in _groups(root, proc, "")]
    quotas += [_v1_quota(group) for group in _groups(root, proc, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path = ROOT, proc: Path = PROC) -> MemoryLimit | None:
    """The group that leaves the least free memory of those the process is in; None where none has a limit."""
    found = [_v2_memory(group) for group in _groups(root, proc, "")]
    found += [_v1_memory(group) for group in _groups(root, proc, "memory")]
    return min((group for group in found if group), key=lambda group: group.limit - group.used, default=None)


def _groups(root: Path, proc: Path, controller: str) -> Iterator[Path]:
    """The process's group and its ancestors up to the mount; `controller` "" stands for version 2.

    Inside a container the path of /proc/self/cgroup is often the host's, and is not there: then only
    the mount itself remains, which is the container's own group.
    """
    for line in read(proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller not in names.split(","):
            continue
        parts = [part for part in path.split("/") if part]
        mounts = [root / names, root / controller] if controller else [root, root / "unified"]
        for mount in dict.fromkeys(mounts):
            inside = [] if ".." in parts else parts
            for depth in range(len(inside), -1, -1):
                yield mount.joinpath(*inside[:depth])


def _v2_quota(group: Path) -> float | None:
    quota, _, period = read(group / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _v1_quota(group: Path) -> float | None:
    quota, period = read_int(group / "cpu.cfs_quota_us"), read_int(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _v2_memory(group: Path) -> MemoryLimit | None:
    # memory.high is where the kernel starts to throttle and reclaim: past it a run crawls.
    limits = [read_int(group / "memory.max"), read_int(group / "memory.high")]
    limit = min((value for value in limits if value is not None), default=None)
    used = read_int(group / "memory.current")
    if limit is None or used is None:
        return None
    stat = read_table(group / "memory.stat")
    return _memory(limit, used, stat.get("inactive_file", 0) + stat.get("active_file", 0))


def _v1_memory(group: Path) -> MemoryLimit | None:
    limit, used = read_int(group / "memory.limit_in_bytes"), read_int(group / "memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    stat = read_table(group / "memory.stat")
    cache = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    return _memory(limit, used, cache)


def _memory(limit: int, used: int, page_cache: int) -> MemoryLimit | None:
    # Version 1 says "no limit" with 2**63 less a page.
    return MemoryLimit(limit, max(0, used - page_cache)) if limit < 2**60 else None
