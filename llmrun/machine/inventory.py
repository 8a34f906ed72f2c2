"""The whole machine in one record, for plans, benches and `doctor`."""

from typing import NamedTuple

from llmrun.machine.cores import Cores, cpu_name, read_cores
from llmrun.machine.devices import Device
from llmrun.machine.gpus import Gpu, find_gpus
from llmrun.machine.memory import Memory, read_memory


class Machine(NamedTuple):
    """`devices` and `features` (of the CPU, by llama.cpp's names) are those of the llama.cpp build, `gpus` those
    of the hardware, which the build may not know how to use.
    """

    cpu: str
    cores: Cores
    memory: Memory
    devices: tuple[Device, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    features: tuple[str, ...] = ()


def read_machine(devices: tuple[Device, ...] = (), features: tuple[str, ...] = ()) -> Machine:
    """This machine now. The caller hands in what only the engine can list."""
    return Machine(cpu_name(), read_cores(), read_memory(), devices, find_gpus(), features)
