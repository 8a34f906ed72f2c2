"""The devices that a llama.cpp build computes on, as its engine lists them."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]


class Device(NamedTuple):
    """Named as in llama.cpp's log (`CUDA0`); an RPC worker is a gpu, `description` is then its address. Bytes."""

    name: str
    description: str
    kind: DeviceKind
    total_bytes: int
    free_bytes: int

    @property
    def is_worker(self) -> bool:
        """Whether it is another machine's, reached through llama.cpp's RPC."""
        return self.name.startswith("RPC")


def offload_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Those that take layers, in llama.cpp's order (`llama_prepare_model_devices` in src/llama.cpp): RPC workers,
    then GPUs, and integrated GPUs only where there is no other.
    """
    devices = tuple(devices)
    workers = [device for device in devices if device.kind == "gpu" and device.is_worker]
    gpus = [device for device in devices if device.kind == "gpu" and not device.is_worker]
    integrated = [device for device in devices if device.kind == "igpu"]
    return (*workers, *(gpus or integrated))
