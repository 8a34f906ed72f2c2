from pathlib import Path

import pytest

from llmrun.machine.cgroup import MemoryLimit, cpu_quota, memory_limit


def proc(tmp_path: Path, text: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(text)
    return tmp_path / "proc"


def files(group: Path, **contents: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (group / name.replace("__", ".")).write_text(text + "\n")


def test_mem_03_version_2_counts_no_page_cache(tmp_path: Path) -> None:
    """MEM-03"""
    files(
        tmp_path / "cg/app",
        memory__max="1073741824",
        memory__current="700000000",
        memory__stat="anon 200000000\nfile 500000000\ninactive_file 300000000\nactive_file 100000000",
    )
    found = memory_limit(tmp_path / "cg", proc(tmp_path, "0::/app\n"))
    assert found == MemoryLimit(limit=1073741824, used=300000000)


def test_mem_03_version_1(tmp_path: Path) -> None:
    """MEM-03"""
    files(
        tmp_path / "cg/memory/docker/abc",
        memory__limit_in_bytes="1073741824",
        memory__usage_in_bytes="700000000",
        memory__stat="cache 1\ntotal_inactive_file 300000000\ntotal_active_file 100000000",
    )
    found = memory_limit(tmp_path / "cg", proc(tmp_path, "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n"))
    assert found == MemoryLimit(limit=1073741824, used=300000000)


@pytest.mark.parametrize("value", ["max", "", "nonsense"])
def test_mem_03_max_is_no_limit(tmp_path: Path, value: str) -> None:
    """MEM-03"""
    files(tmp_path / "cg", memory__max=value, memory__current="700000000", memory__stat="")
    assert memory_limit(tmp_path / "cg", proc(tmp_path, "0::/\n")) is None


def test_mem_03_version_1_says_no_limit_with_a_huge_number(tmp_path: Path) -> None:
    """MEM-03"""
    group = tmp_path / "cg/memory"
    files(group, memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="7", memory__stat="")
    assert memory_limit(tmp_path / "cg", proc(tmp_path, "4:memory:/\n")) is None


def test_mem_03_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    """MEM-03"""
    root = tmp_path / "cg"
    files(root / "a", memory__max="8000", memory__current="7500", memory__stat="inactive_file 500")
    files(root / "a/b", memory__max="max", memory__current="2000", memory__stat="")
    files(root / "a/b/c", memory__max="4000", memory__current="1000", memory__stat="")
    assert memory_limit(root, proc(tmp_path, "0::/a/b/c\n")) == MemoryLimit(limit=8000, used=7000)


def test_memory_high_is_a_limit_too(tmp_path: Path) -> None:
    files(tmp_path / "cg", memory__max="max", memory__high="5000", memory__current="1000", memory__stat="")
    assert memory_limit(tmp_path / "cg", proc(tmp_path, "0::/\n")) == MemoryLimit(limit=5000, used=1000)


def test_mem_03_a_host_path_inside_a_container_falls_back_to_the_mount(tmp_path: Path) -> None:
    """MEM-03"""
    files(tmp_path / "cg", memory__max="1073741824", memory__current="0", memory__stat="")
    files(tmp_path / "cg", cpu__max="150000 100000")
    where = proc(tmp_path, "0::/system.slice/docker-abc.scope\n")
    assert memory_limit(tmp_path / "cg", where) == MemoryLimit(limit=1073741824, used=0)
    assert cpu_quota(tmp_path / "cg", where) == 1.5


def test_path_out_of_the_mount_is_not_followed(tmp_path: Path) -> None:
    files(tmp_path / "outside", cpu__max="100000 100000")
    files(tmp_path / "cg", cpu__max="400000 100000")
    assert cpu_quota(tmp_path / "cg", proc(tmp_path, "0::/../outside\n")) == 4.0


def test_quota_of_both_versions_and_the_least_of_nested_groups(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    files(root / "a", cpu__max="300000 100000")
    files(root / "a/b", cpu__max="max 100000")
    files(root / "cpu,cpuacct/a", cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    files(root / "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    both = proc(tmp_path, "3:cpu,cpuacct:/a\n0::/a/b\n")
    assert cpu_quota(root, both) == 2.5


def test_no_control_groups_is_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path / "none") is None
    assert memory_limit(tmp_path / "none", tmp_path / "none") is None
    files(tmp_path / "cg", cpu__max="odd", memory__max="-5")
    assert cpu_quota(tmp_path / "cg", proc(tmp_path, "broken line\n0::/\n")) is None
