"""The plan of one run: settings that fit, what each device will hold, and what was given up for it."""

from typing import NamedTuple

from llmrun.errors import DoesNotFitError
from llmrun.gguf.header import TensorInfo
from llmrun.gguf.info import ModelInfo
from llmrun.machine.inventory import Machine
from llmrun.plan.fit import Fit, Problem, budget_bytes, largest_context, problem_of, search, shares_memory, spread
from llmrun.plan.kv import APPROXIMATE
from llmrun.plan.placement import DeviceUse
from llmrun.plan.wish import ALL_LAYERS, Wish
from llmrun.report import size_text


class Plan(NamedTuple):
    """Sizes in bytes, contexts in tokens. `uses` has the host first, then the devices that take layers, in the
    order in which llama.cpp is to be given them. `gpu_layers` of `n_slots` layers (the output counts as one) run
    on devices; the routed experts of the first `cpu_expert_layers` stay on the CPU. `notes` say what was given up
    to fit, `left_behind` what stays off the devices for want of memory.
    """

    n_ctx: int
    n_batch: int
    n_ubatch: int
    kv_type: tuple[str, str]
    gpu_layers: int
    n_slots: int
    cpu_expert_layers: int
    kv_on_cpu: bool
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    uses: tuple[DeviceUse, ...]
    notes: tuple[str, ...] = ()
    left_behind: str = ""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


def make_plan(info: ModelInfo, tensors: tuple[TensorInfo, ...], machine: Machine, wish: Wish) -> Plan:
    """Settings with which the model fits. `tensors` are those of all parts of the model.

    Raises UsageError for what the model cannot do with any memory, DoesNotFitError with what is needed, what is
    free and what would fit.
    """
    problem = problem_of(info, tensors, machine, wish)
    fit = search(problem)
    if fit is None:
        raise _refusal(problem)
    return to_plan(problem, fit)


def to_plan(problem: Problem, fit: Fit) -> Plan:
    """The flat record of a fit, with what was given up for it."""
    return Plan(
        n_ctx=fit.sizes.n_ctx,
        n_batch=fit.sizes.n_batch,
        n_ubatch=fit.sizes.n_ubatch,
        kv_type=fit.sizes.kv_type,
        gpu_layers=fit.placement.gpu_layers,
        n_slots=problem.model.n_slots,
        cpu_expert_layers=fit.placement.cpu_expert_layers,
        kv_on_cpu=fit.placement.kv_on_cpu,
        weights_bytes=sum(use.weights_bytes for use in fit.uses),
        kv_bytes=sum(use.kv_bytes for use in fit.uses),
        compute_bytes=sum(use.compute_bytes for use in fit.uses),
        uses=fit.uses,
        notes=_notes(problem, fit),
        left_behind=_left_behind(problem, fit),
    )


def _notes(problem: Problem, fit: Fit) -> tuple[str, ...]:
    """What differs from the wish, and why."""
    wish, sizes = problem.wish, fit.sizes
    notes = []
    if problem.model.info.arch in APPROXIMATE:
        notes.append(f"the memory of a {problem.model.info.arch} model is an estimate")
    if sizes.n_ctx < problem.wanted_context():
        notes.append(f"context of {sizes.n_ctx} tokens: {problem.wanted_context()} do not fit")
    if wish.kv_type is None and sizes.kv_type != ("f16", "f16"):
        notes.append(f"KV cache in {sizes.kv_type[0]}: f16 does not fit")
    if wish.n_ubatch is None and sizes.n_ubatch < 512:
        notes.append(f"prefill in passes of {sizes.n_ubatch} tokens: 512 do not fit")
    return tuple(notes)


def _left_behind(problem: Problem, fit: Fit) -> str:
    """What the user left to the plan and it had to leave on the CPU."""
    placement, devices = fit.placement, problem.devices()
    left = problem.model.n_slots - placement.gpu_layers
    if not devices or problem.wish.gpu_layers is not None:
        return ""
    free = ", ".join(f"{size_text(device.free_bytes)} is free on {device.name}" for device in devices)
    if left:
        return f"{left} of {problem.model.n_slots} layers stay on the CPU: {free}"
    if placement.cpu_expert_layers > problem.wished_expert_layers:
        return f"the experts of {placement.cpu_expert_layers} layers stay on the CPU: {free}"
    return ""


def _refusal(problem: Problem) -> DoesNotFitError:
    """What is needed at the least with what the user has set, what may be used, and what would fit."""
    closest = tightest(problem)
    host, *devices = closest.uses
    over = [_need(use) for use in devices if use.needed_bytes > budget_bytes(use.free_bytes)]
    if not over:
        # What shares the host's memory adds to what the host itself holds.
        shared = sum(use.needed_bytes for use in devices if shares_memory(use))
        over = [_need(host._replace(weights_bytes=host.weights_bytes + shared)) + _limit(problem.machine)]
    return DoesNotFitError(
        f"it does not fit: a context of {closest.sizes.n_ctx} tokens needs {'; '.join(over)}",
        _remedy(problem, closest),
    )


def tightest(problem: Problem) -> Fit:
    """The least demanding settings that the wish allows, whether they fit or not."""
    *_, n_ctx = problem.contexts()
    *_, (kv_type, n_ubatch) = problem.frugality()
    sizes = problem.sizes(n_ctx, kv_type, n_ubatch)
    devices = problem.devices()
    wanted = problem.wish.gpu_layers or 0
    slots = problem.model.n_slots if wanted == ALL_LAYERS else min(wanted, problem.model.n_slots)
    placement = spread(problem, sizes, devices, slots if devices else 0, problem.wished_expert_layers, overfill=True)
    assert placement is not None  # overfill takes everything
    return problem.measure(sizes, placement)


def _need(use: DeviceUse) -> str:
    return (
        f"{size_text(use.needed_bytes)} on {use.name} (weights {size_text(use.weights_bytes)}, "
        f"KV cache {size_text(use.kv_bytes)}, compute {size_text(use.compute_bytes)}), "
        f"where {size_text(use.free_bytes)} is free and {size_text(budget_bytes(use.free_bytes))} may be used"
    )


def _limit(machine: Machine) -> str:
    memory = machine.memory
    return "" if memory.limit_bytes is None else f" ({memory.limit_name} {size_text(memory.limit_bytes)})"


def _remedy(problem: Problem, closest: Fit) -> str:
    """The nearest settings that fit, or what the model may weigh at most."""
    wish = problem.wish
    nearest = []
    n_ctx = largest_context(problem)
    if n_ctx:
        nearest.append(f"-c {n_ctx}")
    for change, flag in (
        (wish._replace(kv_type=None), "--kv-type q8_0"),
        (wish._replace(cpu_expert_layers=ALL_LAYERS), "--cpu-moe"),
        (wish._replace(gpu_layers=None), "-g"),
    ):
        if change == wish or (flag == "--cpu-moe" and not problem.model.has_experts):
            continue
        fit = search(problem._replace(wish=change))
        if fit is not None:
            nearest.append(f"-g {fit.placement.gpu_layers}" if flag == "-g" else flag)
    if nearest:
        return f"what fits: {', or '.join(nearest)}"
    host = closest.uses[0]
    room = budget_bytes(host.free_bytes) - host.kv_bytes - host.compute_bytes
    if room <= 0:
        return "free some memory first: other programs hold it"
    return f"take a smaller model or quantization: weights of up to {size_text(room)} fit here"
