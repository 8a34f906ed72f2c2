"""From what the user asks of a model's memory to a plan, and from a plan to how the model is loaded."""

from collections.abc import Sequence
from typing import NamedTuple

from llmrun.engine import capi
from llmrun.engine.model import ModelSettings
from llmrun.engine.offload import Placed, add_workers
from llmrun.errors import DoesNotFitError
from llmrun.gguf.header import Header
from llmrun.gguf.info import ModelInfo
from llmrun.machine.devices import offload_devices
from llmrun.machine.gpus import BACKENDS, build_command
from llmrun.machine.inventory import Machine, read_machine
from llmrun.plan.fit import budget_bytes
from llmrun.plan.make import Plan, make_plan
from llmrun.plan.wish import ALL_LAYERS, Wish
from llmrun.prepare.settings import ContextWish, Room
from llmrun.report import Report, size_text


class Planner:
    """Plans one model on this machine: once before its weights are read, and again when the prompt is counted."""

    def __init__(self, info: ModelInfo, headers: Sequence[Header], wish: ContextWish, machine: Machine) -> None:
        self.info = info
        self.tensors = tuple(tensor for header in headers for tensor in header.tensors)
        self.wish = wish
        self.machine = machine

    def first(self, room: Room) -> Plan:
        """Where the layers go. Raises UsageError, and DoesNotFitError before any weight is read."""
        plan = make_plan(self.info, self.tensors, self.machine, plan_wish(self.wish, room))
        if self.wish.require_gpu:
            check_gpu(plan, self.machine)
        return plan

    def again(self, plan: Plan, room: Room, wish: ContextWish) -> Plan:
        """The context for the prompt as it is, with the layers where `plan` has put them."""
        fixed = plan_wish(wish, room)
        if plan.gpu_layers:
            devices = tuple(use.name for use in plan.uses[1:])
            fixed = fixed._replace(
                gpu_layers=plan.gpu_layers, devices=devices, cpu_expert_layers=plan.cpu_expert_layers
            )
        else:
            fixed = fixed._replace(gpu_layers=0)
        return make_plan(self.info, self.tensors, self.machine, fixed)

    def report(self, plan: Plan, placed: Placed, report: Report) -> None:
        """Say where the layers are, where there was a choice."""
        if plan.gpu_layers:
            report.note(load_line(plan, placed))
        if plan.left_behind:
            report.note(plan.left_behind)
        if self.wish.gpu_layers != 0:
            for unused in unused_gpus(self.machine):
                report.note(f"{unused.reason}; this adds it: {unused.remedy}")


def this_machine(rpc: Sequence[str] = ()) -> Machine:
    """The machine as the loaded build sees it, with the RPC workers named. Raises EngineError for one that fails."""
    add_workers(rpc)
    return read_machine(capi.devices(), capi.cpu_features())


def weights_budget(machine: Machine) -> int:
    """Bytes of weights that this machine takes, GPUs included: decides among quantizations where none is named."""
    gpus = [device for device in offload_devices(machine.devices) if device.kind == "gpu"]
    return budget_bytes(machine.memory.free_bytes) + sum(budget_bytes(device.free_bytes) for device in gpus)


def check_gpu(plan: Plan, machine: Machine) -> None:
    """Raise DoesNotFitError, with the reason, unless the whole model runs on GPUs."""
    if plan.gpu_layers == plan.n_slots and not plan.cpu_expert_layers:
        return
    unused = unused_gpus(machine)
    if not plan.gpu_layers and unused:
        raise DoesNotFitError(f"--require-gpu: {unused[0].reason}", unused[0].remedy)
    if not offload_devices(machine.devices):
        raise DoesNotFitError("--require-gpu: this build of llama.cpp finds no GPU", "llmrun doctor says more")
    why = plan.left_behind or f"{plan.n_slots - plan.gpu_layers} of {plan.n_slots} layers are kept on the CPU"
    raise DoesNotFitError(f"--require-gpu: {why}", "a smaller -c, --kv-type q8_0 or a smaller quantization")


def plan_wish(wish: ContextWish, room: Room) -> Wish:
    """What the plan takes: a context that the user has set stays, else the room's."""
    return Wish(
        n_ctx=wish.n_ctx or room.n_ctx,
        n_ctx_min=None if wish.n_ctx else room.n_ctx_min,
        kv_type=wish.kv_type,
        n_batch=wish.n_batch,
        n_ubatch=wish.n_ubatch,
        n_seq_max=room.n_seq_max,
        n_outputs=room.n_outputs,
        gpu_layers=wish.gpu_layers,
        devices=wish.devices,
        kv_on_cpu=wish.kv_on_cpu,
        cpu_expert_layers=ALL_LAYERS if wish.cpu_moe else 0,
        flash_attn=wish.flash_attn,
        rope_scaling=wish.rope_scaling,
        rope_scale=wish.rope_scale,
    )


class UnusedGpu(NamedTuple):
    """A GPU of this machine that the build does not use: why, and what mends it."""

    reason: str
    remedy: str


def unused_gpus(machine: Machine, *, all_of_them: bool = False) -> tuple[UnusedGpu, ...]:
    """GPUs that would carry a model but are not among the build's devices; `all_of_them`: the weak ones too."""
    if any(device.kind in ("gpu", "igpu") and not device.is_worker for device in machine.devices):
        return ()
    found = []
    for gpu in machine.gpus:
        if not gpu.reachable:
            reason = f"{gpu.name} is in this machine, but its device file is not here"
            remedy = "install its driver, or give the container the GPU (docker run --gpus all)"
        else:
            backend = BACKENDS[gpu.vendor]
            reason = f"{gpu.name} is in this machine, but this build of llama.cpp has no {backend} backend"
            remedy = build_command(backend, capi.binding_version())
        if gpu.strong or all_of_them:
            found.append(UnusedGpu(reason, remedy))
    return tuple(dict.fromkeys(found))


def model_settings(settings: ModelSettings, plan: Plan) -> ModelSettings:
    """How to load the model so that it lies as planned."""
    return settings._replace(
        gpu_layers=plan.gpu_layers,
        devices=tuple(use.name for use in plan.uses[1:]),
        split=tuple(use.layers for use in plan.uses[1:]),
        cpu_expert_layers=plan.cpu_expert_layers,
    )


def load_line(plan: Plan, placed: Placed) -> str:
    """What llama.cpp did: `33/33 layers on CUDA0 (5.1 of 24 GB), KV on CUDA0`."""
    devices = ", ".join(f"{use.name} ({_of(use.needed_bytes, use.total_bytes)})" for use in plan.uses[1:])
    kv = ", ".join(use.name for use in plan.uses if use.kv_bytes)
    line = f"{placed.layers}/{placed.of_layers} layers on {devices}" + (f", KV on {kv}" if kv else "")
    if placed.layers != plan.gpu_layers:
        line += f"; {plan.gpu_layers} were planned"
    return line


def _of(part: int, whole: int) -> str:
    text, of = size_text(part), size_text(whole)
    number, _, unit = text.partition(" ")
    return f"{number if of.endswith(' ' + unit) else text} of {of}"
