"""What was measured on: the part of the results that says whether two of them can be compared."""

import os
from dataclasses import dataclass, field

from llmrun import __version__
from llmrun.engine import capi
from llmrun.engine.device_memory import device_bandwidth
from llmrun.machine.bandwidth import memory_bandwidth
from llmrun.machine.devices import offload_devices
from llmrun.machine.governor import read_governor
from llmrun.machine.inventory import Machine, read_machine
from llmrun.machine.threads import ThreadChoice
from llmrun.report import size_text


@dataclass(frozen=True)
class MachineFacts:
    """`load` is the average of the last minute when the run began; bandwidth in bytes per second, as all usable
    cores read memory together, and of each device's own memory, by its name (0 where it could not be measured)."""

    cpu: str
    cores_usable: int
    cores_reason: str
    cores_logical: int
    quota: float | None
    load: float | None
    governor: str
    ram_bytes: int
    devices: tuple[str, ...]
    bandwidth_bytes_per_s: float
    device_bandwidth_bytes_per_s: dict[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What must be equal where results are compared."""
        ram_gb = round(self.ram_bytes / 1e9)
        return f"{self.cpu}, {self.cores_usable} cores, {ram_gb} GB, {'; '.join(self.devices) or 'no device'}"


@dataclass(frozen=True)
class BuildFacts:
    llmrun: str
    llama_cpp_python: str
    llama_cpp: str
    backends: tuple[str, ...]


def read_environment() -> tuple[MachineFacts, BuildFacts]:
    """This machine and this build now. Measures the bandwidth of the memory anew, which takes up to a second."""
    machine = read_machine(capi.devices(), capi.cpu_features())
    build = BuildFacts(__version__, capi.binding_version(), capi.version(), capi.backends())
    return _facts(machine), build


def _facts(machine: Machine) -> MachineFacts:
    cores = machine.cores
    devices = tuple(f"{d.name} {d.description}" for d in machine.devices if d.kind != "cpu")
    return MachineFacts(
        cpu=machine.cpu,
        cores_usable=cores.usable,
        cores_reason=cores.reason,
        cores_logical=cores.logical,
        quota=cores.quota,
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        governor=read_governor(),
        ram_bytes=machine.memory.total_bytes,
        devices=devices,
        bandwidth_bytes_per_s=memory_bandwidth(cores, machine.memory.total_bytes, fresh=True).bytes_per_s,
        device_bandwidth_bytes_per_s={d.name: device_bandwidth(d.name) for d in offload_devices(machine.devices)},
    )


def header_lines(machine: MachineFacts, build: BuildFacts, threads: ThreadChoice) -> list[str]:
    """The lines above the table."""
    quota = f", quota {machine.quota:g}" if machine.quota is not None else ""
    load = f", load {machine.load:.1f}" if machine.load is not None else ""
    governor = f", governor {machine.governor}" if machine.governor else ""
    return [
        f"machine: {machine.cpu}, {machine.cores_logical} hardware threads{quota}{load}{governor}, "
        f"{size_text(machine.ram_bytes)} RAM, memory read at {size_text(machine.bandwidth_bytes_per_s)}/s",
        f"devices: {'; '.join(_with_bandwidth(device, machine) for device in machine.devices) or 'CPU only'}",
        f"threads: {threads.n} ({threads.reason})",
        f"build: llmrun {build.llmrun}, llama-cpp-python {build.llama_cpp_python}, llama.cpp {build.llama_cpp}, "
        f"{', '.join(build.backends)}",
    ]


def _with_bandwidth(device: str, machine: MachineFacts) -> str:
    found = machine.device_bandwidth_bytes_per_s.get(device.split(" ")[0])
    return f"{device}, memory copied at {size_text(round(found))}/s" if found else device
