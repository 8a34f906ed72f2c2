"""The whole machine in one record, for plans, benches and `doctor`."""

from dataclasses import dataclass
from typing import Literal

from llmrun.machine.cores import Cores, cpu_name, read_cores
from llmrun.machine.gpus import Gpu, find_gpus
from llmrun.machine.memory import Memory, read_memory

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]


@dataclass(frozen=True)
class Device:
    """A device of the loaded llama.cpp build, named as in its log (`CUDA0`); an RPC worker is a gpu."""

    name: str
    description: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Machine:
    """`devices` and `features` (of the CPU, by llama.cpp's names) are those of the llama.cpp build, `gpus` those
    of the hardware, which the build may not know how to use.
    """

    cpu: str
    cores: Cores
    memory: Memory
    devices: tuple[Device, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def offload_devices(self) -> tuple[Device, ...]:
        """Those that take layers, in llama.cpp's order (`llama_prepare_model_devices` in llama.cpp): RPC
        workers, then GPUs, and integrated GPUs only where there is no other.
        """
        gpus = [device for device in self.devices if device.kind == "gpu"]
        workers = [device for device in gpus if device.name.startswith("RPC")]
        gpus = [device for device in gpus if device not in workers]
        integrated = [device for device in self.devices if device.kind == "igpu"]
        return (*workers, *(gpus or integrated))


def read_machine(devices: tuple[Device, ...] = (), features: tuple[str, ...] = ()) -> Machine:
    """This machine now. The caller hands in what only the engine can list."""
    return Machine(cpu_name(), read_cores(), read_memory(), devices, find_gpus(), features)
