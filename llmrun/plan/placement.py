"""Which layers run where, and what each device's memory then holds. Knows nothing of what fits."""

from typing import NamedTuple

from llmrun.gguf.header import TensorInfo
from llmrun.gguf.info import ModelInfo
from llmrun.machine.devices import Device, DeviceKind
from llmrun.plan.compute import compute_bytes, host_compute_bytes, input_bytes, output_bytes
from llmrun.plan.kv import kv_bytes
from llmrun.plan.sizes import ContextSizes
from llmrun.plan.weights import Weights, device_bytes, host_bytes

HOST = "CPU"
PIPELINE_COPIES = 4  # GGML_SCHED_MAX_COPIES


class Model(NamedTuple):
    """What a plan needs of a model. A slot is a layer or, last, the output: what llama.cpp counts as layers.

    `slot_bytes` are the bytes of each slot's weights on a device without, `expert_bytes` those of its routed experts.
    """

    info: ModelInfo
    weights: Weights
    slot_bytes: tuple[int, ...]
    expert_bytes: tuple[int, ...]

    @property
    def n_slots(self) -> int:
        return self.info.n_layer + 1

    @property
    def has_experts(self) -> bool:
        return any(self.weights.experts)


def model_of(info: ModelInfo, weights: Weights) -> Model:
    output = device_bytes((*weights.output, *weights.tied))
    return Model(
        info,
        weights,
        slot_bytes=(*map(device_bytes, weights.layers), output),
        expert_bytes=(*map(device_bytes, weights.experts), 0),
    )


class Placement(NamedTuple):
    """`slots[i]` slots run on `devices[i]`, in order and up to the output; the slots before them on the CPU.

    The routed experts of the first `cpu_expert_layers` layers stay on the CPU whatever runs their layer.
    """

    devices: tuple[Device, ...] = ()
    slots: tuple[int, ...] = ()
    cpu_expert_layers: int = 0
    kv_on_cpu: bool = False

    @property
    def gpu_layers(self) -> int:
        return sum(self.slots)


class DeviceUse(NamedTuple):
    """What a device's memory holds. `layers` counts the output as one. The first of a plan's is the host's."""

    name: str
    kind: DeviceKind
    layers: int
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    free_bytes: int
    total_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


def device_uses(
    model: Model, sizes: ContextSizes, placement: Placement, host: Device, features: frozenset[str]
) -> tuple[DeviceUse, ...]:
    """The host's use, then each device's. `features` are the CPU's, by llama.cpp's names."""
    kv = (*kv_bytes(model.info, model.weights, sizes), 0)
    first = model.n_slots - placement.gpu_layers
    uses = [_host_use(model, sizes, placement, host, features, kv)]
    for device, n_slots in zip(placement.devices, placement.slots, strict=True):
        slots = range(first, first + n_slots)
        has_output = n_slots > 0 and first + n_slots == model.n_slots
        uses.append(
            DeviceUse(
                device.name,
                device.kind,
                n_slots,
                sum(slot_weights(model, placement.cpu_expert_layers, slot) for slot in slots),
                0 if placement.kv_on_cpu else sum(kv[slot] for slot in slots),
                device_compute_bytes(model, sizes, placement, device, has_output) if n_slots else 0,
                device.free_bytes,
                device.total_bytes,
            )
        )
        first += n_slots
    return tuple(uses)


def device_compute_bytes(
    model: Model, sizes: ContextSizes, placement: Placement, device: Device, has_output: bool
) -> int:
    """The compute buffer, with what llama.cpp copies to a local GPU: a matrix of the CPU's layers at a time, for the
    passes of a prefill that it computes there (`op_offload`, ggml/src/ggml-backend.cpp), and, where layers are piped
    through several GPUs, the inputs of the next passes (`pipeline_parallel`, src/llama-context.cpp).
    """
    needed = compute_bytes(model.info, model.weights, sizes, has_output)
    if device.is_worker:
        return needed
    first, weights = model.n_slots - placement.gpu_layers, model.weights
    on_cpu = (*weights.layers[:first], *weights.experts[: max(first, placement.cpu_expert_layers)])
    needed += max((tensor.n_bytes for layer in on_cpu for tensor in layer), default=0)
    piped = len(placement.devices) > 1 and not any(other.is_worker for other in placement.devices)
    if piped and first == 0 and not placement.kv_on_cpu and not placement.cpu_expert_layers:
        needed += (PIPELINE_COPIES - 1) * input_bytes(model.info, sizes)
    return needed


def slot_weights(model: Model, cpu_expert_layers: int, slot: int) -> int:
    """Bytes of a slot's weights on the device that runs it."""
    experts = 0 if slot < cpu_expert_layers else model.expert_bytes[slot]
    return model.slot_bytes[slot] + experts


def _host_use(
    model: Model,
    sizes: ContextSizes,
    placement: Placement,
    host: Device,
    features: frozenset[str],
    kv: tuple[int, ...],
) -> DeviceUse:
    weights, info = model.weights, model.info
    first = model.n_slots - placement.gpu_layers
    rest: list[TensorInfo] = []
    for layer in range(info.n_layer):
        if layer < first:
            rest += weights.layers[layer]
        if layer < first or layer < placement.cpu_expert_layers:
            rest += weights.experts[layer]
    output_here = placement.gpu_layers == 0
    if output_here:
        rest += weights.output
    # Beside a GPU the CPU's matrices go to that GPU's pinned buffers, where nothing is rearranged.
    rearranges = all(device.is_worker for device in placement.devices)
    held = host_bytes(
        weights.input, rest, weights.tied if output_here else (), features if rearranges else frozenset()
    )
    busy = first > 0 or placement.kv_on_cpu or placement.cpu_expert_layers > 0
    compute = compute_bytes(info, weights, sizes, output_here) if busy else host_compute_bytes(info, sizes)
    return DeviceUse(
        host.name,
        host.kind,
        first,
        held.total,
        sum(kv) if placement.kv_on_cpu else sum(kv[:first]),
        compute + output_bytes(info, sizes),
        host.free_bytes,
        host.total_bytes,
    )
