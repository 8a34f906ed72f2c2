import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.machine.cores import Cores, count_cores, cpu_name, linux_topology, read_cores
from llmrun.machine.load import CpuReading
from llmrun.machine.threads import choose_threads


def fake_sys(root: Path, cores: list[str], fast: str = "", capacity: list[int] | None = None) -> Path:
    """A /sys tree of cores, each given as its CPU list ("0,8")."""
    base = root / "devices/system/cpu"
    cpus = sorted(int(cpu) for core in cores for cpu in core.split(","))
    base.mkdir(parents=True)
    (base / "online").write_text(f"0-{cpus[-1]}\n" if len(cpus) > 1 else "0\n")
    for core in cores:
        for cpu in core.split(","):
            topology = base / f"cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "core_cpus_list").write_text(core + "\n")
            if capacity:
                (topology.parent / "cpu_capacity").write_text(f"{capacity[int(cpu)]}\n")
    if fast:
        (root / "devices/cpu_core").mkdir()
        (root / "devices/cpu_core/cpus").write_text(fast + "\n")
    return root


def cores_of(root: Path, mask: set[int], quota: float | None = None, cpu_count: int | None = None) -> Cores:
    return count_cores(*linux_topology(root, cpu_count), frozenset(mask), quota)


def test_ben_01_hyper_threads_are_not_cores(tmp_path: Path) -> None:
    cores = cores_of(fake_sys(tmp_path, [f"{n},{n + 8}" for n in range(8)]), set(range(16)))
    assert (cores.logical, cores.physical, cores.usable) == (16, 8, 8)
    assert cores.reason == "8 physical cores"


def test_ben_01_efficiency_cores_stay_out(tmp_path: Path) -> None:
    cores = cores_of(fake_sys(tmp_path, [str(n) for n in range(20)], fast="0-7"), set(range(20)))
    assert (cores.logical, cores.physical, cores.performance, cores.usable) == (20, 20, 8, 8)
    assert cores.reason == "8 performance cores"


def test_arm_capacities_tell_small_cores_apart(tmp_path: Path) -> None:
    capacity = [250] * 4 + [760] * 3 + [1024]
    cores = cores_of(fake_sys(tmp_path, [str(n) for n in range(8)], capacity=capacity), set(range(8)))
    assert cores.usable == 4


def test_ben_01_one_cpu_and_an_unknown_count_are_one(tmp_path: Path) -> None:
    assert cores_of(fake_sys(tmp_path / "one", ["0"]), {0}).usable == 1
    unknown = cores_of(tmp_path / "no sysfs", set(), cpu_count=None)
    assert (unknown.logical, unknown.physical, unknown.usable) == (1, 1, 1)
    assert cores_of(tmp_path / "no sysfs", set(), cpu_count=6).usable == 6


def test_ben_01_affinity_bounds_the_count(tmp_path: Path) -> None:
    smt = fake_sys(tmp_path / "smt", [f"{n},{n + 8}" for n in range(8)])
    assert cores_of(smt, {0, 1, 2, 3}).usable == 4
    assert cores_of(smt, {0, 8, 1, 9}).usable == 2, "two hyper-threads of one core are one core"
    assert cores_of(smt, {0, 8, 1, 9}).reason == "2 physical cores inside the affinity mask"
    hybrid = fake_sys(tmp_path / "hybrid", [str(n) for n in range(20)], fast="0-7")
    assert cores_of(hybrid, {12, 13, 14}).usable == 3, "a process bound to efficiency cores uses those"


def test_quota_bounds_the_count(tmp_path: Path) -> None:
    root = fake_sys(tmp_path, [str(n) for n in range(16)])
    assert cores_of(root, set(range(16)), quota=4.0).usable == 4
    assert cores_of(root, set(range(16)), quota=2.5).usable == 2
    assert cores_of(root, set(range(16)), quota=0.5).usable == 1
    assert cores_of(root, set(range(16)), quota=64.0).usable == 16
    assert cores_of(root, set(range(16)), quota=4.0).reason == "CPU quota of 4 cores"


def test_damaged_topology_still_counts(tmp_path: Path) -> None:
    root = fake_sys(tmp_path, ["0", "1"])
    (root / "devices/system/cpu/cpu0/topology/core_cpus_list").write_text("no list")
    (root / "devices/system/cpu/cpu1/topology/core_cpus_list").write_text("")
    assert cores_of(root, {0, 1}).usable == 2


def test_threads_follow_load_seed_and_request(tmp_path: Path) -> None:
    cores = cores_of(fake_sys(tmp_path, [f"{n},{n + 8}" for n in range(8)]), set(range(16)))
    assert choose_threads(cores).n == 8
    assert choose_threads(cores, 0.4).n == 8
    busy = choose_threads(cores, 2.6)
    assert (busy.n, busy.reason) == (5, "8 physical cores, 2.6 kept busy by other programs")
    assert choose_threads(cores, 40.0).n == 1, "never 0"
    assert choose_threads(cores, 40.0, requested=3).n == 3
    assert choose_threads(cores, 40.0, requested=3).reason == "--threads"
    seeded = choose_threads(cores, 40.0, seed_given=True)
    assert seeded.n == 8 and "ignored with --seed" in seeded.reason


def test_quota_leaves_room_for_other_programs(tmp_path: Path) -> None:
    cores = cores_of(fake_sys(tmp_path, [str(n) for n in range(64)]), set(range(64)), quota=4.0)
    assert choose_threads(cores, 30.0).n == 4, "34 cores are idle, and the quota allows 4"
    assert choose_threads(cores, 62.0).n == 2


def test_this_machine_has_at_least_one_usable_core() -> None:
    cores = read_cores()
    assert 1 <= cores.usable <= cores.allowed <= cores.logical <= (os.cpu_count() or cores.logical)
    assert cpu_name()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity to set")
def test_affinity_of_the_process_is_seen() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from llmrun.machine.cores import read_cores\n"
        "print(read_cores().usable)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def reading(wall_s: float, busy_s: dict[int, float], own_s: float) -> CpuReading:
    return CpuReading(wall_s, busy_s, own_s)


def test_load_leaves_out_this_process_and_other_cpus() -> None:
    before = reading(100.0, {0: 50.0, 1: 50.0, 2: 50.0}, own_s=7.0)
    after = reading(102.0, {0: 52.0, 1: 51.0, 2: 52.0}, own_s=8.0)
    assert after.busy_cores_since(before) == 2.0
    assert after.busy_cores_since(before, cpus=(0, 1)) == 1.0
    assert after.busy_cores_since(reading(101.99, {0: 0.0, 1: 0.0, 2: 0.0}, 0.0)) == 0.0, "too close to tell"


def test_load_of_this_machine_counts_a_busy_program_but_not_this_one() -> None:
    before = CpuReading.now()
    burn = "import time; e = time.monotonic() + 1\nwhile time.monotonic() < e: pass"
    child = subprocess.Popen([sys.executable, "-c", burn])
    total = sum(n * n for n in range(3_000_000))  # this process is busy too
    child.poll()
    after = CpuReading.now()
    assert total > 0
    busy = after.busy_cores_since(before)
    child.wait()
    assert 0.0 <= busy <= (os.cpu_count() or 1)
    assert after.own_s > before.own_s
    assert sum(after.busy_s.values()) > sum(before.busy_s.values())
