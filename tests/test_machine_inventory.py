import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.machine.bandwidth import Bandwidth, keep, memory_bandwidth
from llmrun.machine.cores import cpu_name, read_cores
from llmrun.machine.devices import Device, offload_devices
from llmrun.machine.gpus import Gpu, build_command, find_gpus
from llmrun.machine.inventory import read_machine
from llmrun.machine.memory import Memory, read_memory

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's own files")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def host(root: Path, cgroup_line: str = "0::/\n") -> Path:
    write(root / "proc/meminfo", "MemTotal:       32000000 kB\nMemFree:  1 kB\nMemAvailable:   16000000 kB")
    write(root / "proc/self/cgroup", cgroup_line)
    return root / "proc"


@linux_only
def test_mem_03_container_limit_is_less_than_the_host(tmp_path: Path) -> None:
    """MEM-03"""
    write(tmp_path / "cg/memory.max", "1073741824")
    write(tmp_path / "cg/memory.current", "400000000")
    write(tmp_path / "cg/memory.stat", "inactive_file 200000000")
    found = read_memory(host(tmp_path), tmp_path / "cg")
    assert (found.free_bytes, found.limit_bytes) == (873741824, 1073741824)
    assert found.limit_name == "container limit"
    assert (found.total_bytes, found.available_bytes) == (32768000000, 16384000000)


@linux_only
def test_mem_03_host_memory_may_be_the_lesser(tmp_path: Path) -> None:
    """MEM-03"""
    write(tmp_path / "cg/memory.max", "31000000000")
    write(tmp_path / "cg/memory.current", "1000")
    found = read_memory(host(tmp_path), tmp_path / "cg")
    assert (found.free_bytes, found.limit_bytes, found.limit_name) == (16384000000, None, "")


@linux_only
def test_mem_03_max_is_the_host(tmp_path: Path) -> None:
    """MEM-03"""
    write(tmp_path / "cg/memory.max", "max")
    write(tmp_path / "cg/memory.current", "1000")
    found = read_memory(host(tmp_path), tmp_path / "cg")
    assert found == Memory(32768000000, 16384000000, None, "", 16384000000)


@linux_only
def test_mem_01_ulimit_is_seen() -> None:
    """MEM-01"""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3_000_000_000, 3_000_000_000))\n"
        "from llmrun.machine.memory import read_memory\n"
        "m = read_memory(); print(m.limit_name, m.limit_bytes, m.free_bytes < 3_000_000_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ulimit", "-v", "3000000000", "True"]


def test_this_machine_has_memory() -> None:
    machine = read_machine((Device("CPU", "cpu", "cpu", 1, 1),))
    assert 0 < machine.memory.free_bytes <= machine.memory.total_bytes
    assert machine.cpu and machine.cores.usable >= 1
    assert offload_devices(machine.devices) == ()


@linux_only
def test_gpus_of_the_bus_and_of_the_driver(tmp_path: Path) -> None:
    assert find_gpus(tmp_path) == ()
    bus = tmp_path / "sys/bus/pci/devices"
    for slot, vendor, kind in (
        ("0000:00:02.0", "0x8086", "0x030000"),
        ("0000:01:00.0", "0x10de", "0x030200"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # the sound device of the same card
        ("0000:02:00.0", "0x1af4", "0x030000"),  # a virtual display
        ("0000:03:00.0", "0x1002", "0x030000"),
        ("0000:04:00.0", "0x1002", "0x038000"),
        ("0000:05:00.0", "0x8086", "0x030000"),
    ):
        write(bus / slot / "vendor", vendor)
        write(bus / slot / "class", kind)
    write(bus / "0000:03:00.0/mem_info_vram_total", "17163091968")
    write(bus / "0000:04:00.0/mem_info_vram_total", "536870912")
    assert find_gpus(tmp_path) == (
        Gpu("intel", "Intel GPU", reachable=False, strong=False),
        Gpu("nvidia", "NVIDIA GPU", reachable=False, strong=True),
        Gpu("amd", "AMD GPU", reachable=False, strong=True),
        Gpu("amd", "AMD GPU", reachable=False, strong=False),
        Gpu("intel", "Intel GPU", reachable=False, strong=True),
    )
    write(tmp_path / "dev/dri/renderD128", "")
    write(tmp_path / "dev/nvidiactl", "")
    information = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    write(information, "Model: \t\t NVIDIA RTX 4090\nIRQ:   \t\t 16")
    found = find_gpus(tmp_path)
    assert found[0] == Gpu("nvidia", "NVIDIA RTX 4090", reachable=True, strong=True)
    assert [gpu.vendor for gpu in found[1:]] == ["intel", "amd", "amd", "intel"]
    assert all(gpu.reachable for gpu in found)


def test_build_command_names_backend_and_version() -> None:
    command = build_command("Vulkan", "0.3.36")
    assert "-DGGML_VULKAN=on" in command and command.endswith("llama-cpp-python==0.3.36")


def device(name: str, kind: str) -> Device:
    return Device(name, name, kind, 8, 8)  # type: ignore[arg-type]


def test_offload_devices_in_llama_cpps_order() -> None:
    def names(*devices: Device) -> list[str]:
        return [found.name for found in offload_devices(devices)]

    cpu, integrated, cuda = device("CPU", "cpu"), device("Vulkan1", "igpu"), device("CUDA0", "gpu")
    assert names(cpu, device("BLAS", "accel")) == []
    assert names(integrated, cpu) == ["Vulkan1"]
    assert names(integrated, cuda, device("RPC0", "gpu"), cpu) == ["RPC0", "CUDA0"]
    assert names(integrated, device("RPC0", "gpu")) == ["RPC0", "Vulkan1"]


def test_a_quiet_measurement_of_the_bandwidth_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path))
    cores, kept = read_cores(), tmp_path / "state/bandwidth.json"
    measured = memory_bandwidth(cores, 1 << 30)
    assert measured.bytes_per_s > 1e8, "any machine that runs this reads 100 MB a second"
    assert kept.exists() == measured.is_quiet
    key = f"{cpu_name()} | {cores.usable} cores | 1 GB"
    keep(key, Bandwidth(5e9, 0.0))
    assert memory_bandwidth(cores, 1 << 30) == Bandwidth(5e9, 0.0)
    assert memory_bandwidth(cores, 1 << 30, fresh=True).bytes_per_s != 5e9
    keep("another machine", Bandwidth(7e9, 0.0))
    assert len(json.loads(kept.read_text())) == 2
    kept.write_text("[1, damaged")
    assert memory_bandwidth(cores, 1 << 30).bytes_per_s > 1e8
    assert not list(kept.parent.glob("*.json.*")), "nothing is left half-written"


def test_bandwidth_without_a_writable_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path / "file"))
    keep("this machine", Bandwidth(5e9, 0.0))
    assert memory_bandwidth(read_cores(), 1 << 30).bytes_per_s > 1e8
