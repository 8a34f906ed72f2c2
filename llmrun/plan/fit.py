"""Chooses context, cache type, batch and GPU layers so that a model fits a machine; or says what would fit."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from llmrun.errors import UsageError
from llmrun.gguf.header import TensorInfo
from llmrun.gguf.info import ModelInfo
from llmrun.machine.devices import Device, offload_devices
from llmrun.machine.inventory import Machine
from llmrun.plan.kv import check_kv_type, kv_bytes
from llmrun.plan.placement import (
    HOST,
    DeviceUse,
    Model,
    Placement,
    device_compute_bytes,
    device_uses,
    model_of,
    slot_weights,
)
from llmrun.plan.sizes import PADDING, ContextSizes, pad
from llmrun.plan.weights import sort_tensors
from llmrun.plan.wish import ALL_LAYERS, Wish, check_context, context_limit

LARGEST_MARGIN = 1 << 30
# What is given up to fit, in this order, as (cache type, n_ubatch): first what costs no quality.
FRUGALITY = ((("f16", "f16"), 512), (("f16", "f16"), 128), (("q8_0", "q8_0"), 512), (("q8_0", "q8_0"), 128))


class Fit(NamedTuple):
    """Settings, where the layers go with them, and what each device then holds (the host first)."""

    sizes: ContextSizes
    placement: Placement
    uses: tuple[DeviceUse, ...]


def budget_bytes(free_bytes: int) -> int:
    """What may be used of free memory: a tenth, at most 1 GiB, stays for what is not counted here (a GPU
    library's own buffers, the work space of matrix products, other programs).
    """
    return free_bytes - min(LARGEST_MARGIN, free_bytes // 10)


class Problem(NamedTuple):
    """A model, a machine and a wish, with the settings to try derived from them."""

    model: Model
    machine: Machine
    wish: Wish

    @property
    def host(self) -> Device:
        memory = self.machine.memory
        return Device(HOST, self.machine.cpu, "cpu", memory.total_bytes, memory.free_bytes)

    def devices(self) -> tuple[Device, ...]:
        """Those that may take layers. Raises UsageError for a name that the build does not have."""
        known = offload_devices(self.machine.devices)
        wanted = self.wish.devices
        if self.wish.gpu_layers == 0 or wanted == ("none",):
            return ()
        if wanted is None:
            return known
        by_name = {device.name.lower(): device for device in self.machine.devices if device.kind != "cpu"}
        for name in wanted:
            if name.lower() not in by_name:
                names = ", ".join(device.name for device in by_name.values())
                raise UsageError(f"there is no device {name}", f"this build has {names or 'none but the CPU'}")
        return tuple(by_name[name.lower()] for name in wanted)

    @property
    def wished_expert_layers(self) -> int:
        """Layers whose experts the user keeps on the CPU."""
        n_layer, wanted = self.model.info.n_layer, self.wish.cpu_expert_layers
        if not self.model.has_experts:
            return 0
        return n_layer if wanted == ALL_LAYERS else min(wanted, n_layer)

    def contexts(self) -> Iterator[int]:
        """Contexts to try: what is wanted, then half of it, down to what is enough."""
        wanted = self.wanted_context()
        least = wanted if self.wish.n_ctx_min is None else min(wanted, max(1, self.wish.n_ctx_min))
        while wanted > least:
            yield wanted
            wanted = max(least, pad(wanted // 2))
        yield least

    def wanted_context(self) -> int:
        limit = context_limit(self.model.info, self.wish) or self.wish.n_ctx or 4096
        return min(self.wish.n_ctx, limit) if self.wish.n_ctx else limit

    def frugality(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Cache types and batches to try, the user's own where one is set."""
        tried = set()
        for kv_type, n_ubatch in FRUGALITY:
            chosen = (self.wish.kv_type or kv_type, self.wish.n_ubatch or n_ubatch)
            if chosen not in tried and (self.wish.kv_type is not None or self.can_have(chosen[0])):
                tried.add(chosen)
                yield chosen

    def can_have(self, kv_type: tuple[str, str]) -> bool:
        """Whether the model's heads and the wished attention allow a cache type."""
        try:
            check_kv_type(self.model.info, kv_type, self.wish.flash_attn)
        except UsageError:
            return False
        return True

    def sizes(self, n_ctx: int, kv_type: tuple[str, str], n_ubatch: int) -> ContextSizes:
        return ContextSizes(
            n_ctx=n_ctx,
            n_batch=self.wish.n_batch or max(512, n_ubatch),
            n_ubatch=n_ubatch,
            n_seq_max=self.wish.n_seq_max,
            n_outputs=max(self.wish.n_outputs, self.wish.n_seq_max),
            kv_type=kv_type,
            flash_attn=self.wish.flash_attn != "off" and self.model.info.arch != "grok",
        )

    def measure(self, sizes: ContextSizes, placement: Placement) -> Fit:
        return Fit(
            sizes,
            placement,
            device_uses(self.model, sizes, placement, self.host, frozenset(self.machine.features)),
        )


def problem_of(info: ModelInfo, tensors: Iterable[TensorInfo], machine: Machine, wish: Wish) -> Problem:
    """`tensors` are those of all parts of the model."""
    return Problem(model_of(info, sort_tensors(tensors, info.n_layer)), machine, wish)


def search(problem: Problem) -> Fit | None:
    """The first settings that fit: everything on the GPUs; else all layers there and experts on the CPU; else
    as many layers as fit. Without a GPU, or with the layers set, all of these are the same. None: nothing fits.
    """
    check_context(problem.model.info, problem.wish)
    if problem.wish.kv_type is not None:
        check_kv_type(problem.model.info, problem.wish.kv_type, problem.wish.flash_attn)
    devices = problem.devices()
    contexts = list(problem.contexts())
    for tier in _tiers(problem, devices):
        for n_ctx in contexts if tier != LAYERS_LEAVE else contexts[-1:]:
            for kv_type, n_ubatch in problem.frugality():
                fit = _place(problem, problem.sizes(n_ctx, kv_type, n_ubatch), devices, tier)
                if fit is not None:
                    return fit
    return None


ALL_THERE, EXPERTS_LEAVE, LAYERS_LEAVE, AS_SET = range(4)


def _tiers(problem: Problem, devices: tuple[Device, ...]) -> tuple[int, ...]:
    if not devices or problem.wish.gpu_layers is not None:
        return (AS_SET,)
    return (ALL_THERE, EXPERTS_LEAVE, LAYERS_LEAVE) if problem.model.has_experts else (ALL_THERE, LAYERS_LEAVE)


def _place(problem: Problem, sizes: ContextSizes, devices: tuple[Device, ...], tier: int) -> Fit | None:
    n_slots, n_layer = problem.model.n_slots, problem.model.info.n_layer
    all_experts = n_layer if problem.model.has_experts else 0
    on_cpu = problem.wished_expert_layers
    if tier == AS_SET:
        wanted = n_slots if problem.wish.gpu_layers == ALL_LAYERS else problem.wish.gpu_layers or 0
        tries = [(min(wanted, n_slots) if devices else 0, on_cpu)]
    elif tier == ALL_THERE:
        tries = [(n_slots, on_cpu)]
    elif tier == EXPERTS_LEAVE:
        tries = [(n_slots, experts) for experts in range(on_cpu + 1, n_layer + 1)]
    else:
        tries = [(slots, all_experts) for slots in range(n_slots - 1, -1, -1)]
    # The tries give up more and more, so that after the first that spreads all do.
    low, high = 0, len(tries)
    while low < high:
        middle = (low + high) // 2
        if spread(problem, sizes, devices, *tries[middle]) is None:
            low = middle + 1
        else:
            high = middle
    placement = spread(problem, sizes, devices, *tries[low]) if low < len(tries) else None
    fit = placement and problem.measure(sizes, placement)
    return fit if fit and fits(fit) else None


def spread(
    problem: Problem,
    sizes: ContextSizes,
    devices: tuple[Device, ...],
    gpu_layers: int,
    cpu_expert_layers: int,
    overfill: bool = False,
) -> Placement | None:
    """Give the last `gpu_layers` slots to devices, filling the last device first: what is slow to reach (an
    RPC worker) comes first in llama.cpp's order and takes only what the others cannot.

    None: they do not fit. With `overfill` the first device takes the rest all the same.
    """
    model = problem.model
    whole = Placement(devices, (0,) * (len(devices) - 1) + (gpu_layers,), cpu_expert_layers, problem.wish.kv_on_cpu)
    kv = (*kv_bytes(model.info, model.weights, sizes), 0)
    slot, taken = model.n_slots - 1, 0
    used: list[Device] = []
    counts: list[int] = []
    for device in reversed(devices):
        room = budget_bytes(device.free_bytes) - device_compute_bytes(model, sizes, whole, device, not taken)
        count = 0
        while taken < gpu_layers:
            needed = slot_weights(model, cpu_expert_layers, slot) + (0 if problem.wish.kv_on_cpu else kv[slot])
            if needed > room and not (overfill and device is devices[0]):
                break
            room -= needed
            count, taken, slot = count + 1, taken + 1, slot - 1
        if count:
            used.insert(0, device)
            counts.insert(0, count)
    if taken < gpu_layers:
        return None
    return Placement(tuple(used), tuple(counts), cpu_expert_layers, problem.wish.kv_on_cpu)


def fits(fit: Fit) -> bool:
    """Whether every device, and the host with what shares its memory, stays inside its budget."""
    shared = sum(use.needed_bytes for use in fit.uses[1:] if shares_memory(use))
    host, *devices = fit.uses
    return host.needed_bytes + shared <= budget_bytes(host.free_bytes) and all(
        use.needed_bytes <= budget_bytes(use.free_bytes) for use in devices
    )


def shares_memory(use: DeviceUse) -> bool:
    """Whether a device computes in the host's RAM: integrated GPUs, and Apple's."""
    return use.kind == "igpu" or use.name.startswith(("Metal", "MTL"))


def largest_context(problem: Problem) -> int | None:
    """The longest context that fits with all else as wished, None where not even the shortest does."""
    low, high = 0, problem.wanted_context() // PADDING
    while low < high:
        middle = (low + high + 1) // 2
        wish = problem.wish._replace(n_ctx=middle * PADDING, n_ctx_min=None)
        if search(problem._replace(wish=wish)) is None:
            high = middle - 1
        else:
            low = middle
    return low * PADDING or None
