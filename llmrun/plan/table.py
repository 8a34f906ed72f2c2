"""What fits, as a table: one row for each context and cache type, or for each quantization of a model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llmrun.gguf.header import TensorInfo
from llmrun.plan.fit import Fit, Problem, largest_context, search
from llmrun.plan.kv import kv_bytes
from llmrun.plan.make import tightest
from llmrun.plan.placement import Model, model_of
from llmrun.plan.weights import Weights
from llmrun.plan.wish import context_limit

CONTEXTS = (4096, 8192, 32768)
FULL_PRECISION = ("F32", "F16", "BF16")
CACHE_TYPES = (("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"))


@dataclass(frozen=True)
class DeviceLayers:
    """Layers on one device; the output counts as one."""

    name: str
    layers: int


@dataclass(frozen=True)
class Row:
    """Sizes in bytes. `decode_tps_at_most` is an upper bound, from the memory bandwidth of the cores and the bytes
    they read for each token at a full context; None where they read none, or the bandwidth is not known.
    """

    n_ctx: int
    kv_type: tuple[str, str]
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    total_bytes: int
    fits: bool
    n_ubatch: int
    layers: tuple[DeviceLayers, ...]
    cpu_expert_layers: int
    decode_tps_at_most: float | None


@dataclass(frozen=True)
class QuantRow:
    """A quantization of the same model, from its file's size."""

    quant: str
    size_bytes: int
    best: bool
    row: Row


def context_rows(problem: Problem, bytes_per_s: float | None) -> tuple[Row, ...]:
    """Rows over contexts and cache types, each as the wish sets it, else over the usual ones up to the model's."""
    wish, limit = problem.wish, context_limit(problem.model.info, problem.wish)
    contexts = [wish.n_ctx] if wish.n_ctx else [n_ctx for n_ctx in CONTEXTS if n_ctx < limit] + [limit or CONTEXTS[0]]
    types = [wish.kv_type] if wish.kv_type else [kv_type for kv_type in CACHE_TYPES if problem.can_have(kv_type)]
    return tuple(
        row(problem._replace(wish=wish._replace(n_ctx=n_ctx, n_ctx_min=None, kv_type=kv_type)), bytes_per_s)
        for n_ctx in contexts
        for kv_type in types
    )


def row(problem: Problem, bytes_per_s: float | None) -> Row:
    """One row, for the context and cache type that the wish sets. Raises UsageError for what cannot be."""
    found = search(problem)
    fit = found or tightest(problem)
    return Row(
        n_ctx=fit.sizes.n_ctx,
        kv_type=fit.sizes.kv_type,
        weights_bytes=sum(use.weights_bytes for use in fit.uses),
        kv_bytes=sum(use.kv_bytes for use in fit.uses),
        compute_bytes=sum(use.compute_bytes for use in fit.uses),
        total_bytes=sum(use.needed_bytes for use in fit.uses),
        fits=found is not None,
        n_ubatch=fit.sizes.n_ubatch,
        layers=tuple(DeviceLayers(use.name, use.layers) for use in fit.uses if use.layers),
        cpu_expert_layers=fit.placement.cpu_expert_layers,
        decode_tps_at_most=decode_bound(problem.model, fit, bytes_per_s),
    )


def longest_contexts(problem: Problem) -> tuple[tuple[str, int], ...]:
    """For each cache type the longest context that fits, 0 for none."""
    types = [problem.wish.kv_type] if problem.wish.kv_type else [t for t in CACHE_TYPES if problem.can_have(t)]
    open_ended = problem.wish._replace(n_ctx=0, n_ctx_min=None)
    return tuple(
        (
            ",".join(dict.fromkeys(kv_type)),
            largest_context(problem._replace(wish=open_ended._replace(kv_type=kv_type))) or 0,
        )
        for kv_type in types
    )


def quant_rows(
    problem: Problem, quants: Sequence[tuple[str, int]], size_bytes: int, bytes_per_s: float | None
) -> tuple[QuantRow, ...]:
    """A row for each (quant, file size), smallest first, scaled from a model whose file has `size_bytes`. The best
    is the largest that fits; one in full precision only where it is the only one.
    """
    rows = []
    for quant, quant_bytes in sorted(quants, key=lambda each: each[1]):
        weights = _scaled(problem.model.weights, quant_bytes / max(1, size_bytes))
        model = model_of(problem.model.info, weights)
        rows.append(QuantRow(quant, quant_bytes, False, row(problem._replace(model=model), bytes_per_s)))
    fitting = [each for each in rows if each.row.fits]
    quantized = [each for each in fitting if each.quant not in FULL_PRECISION]
    best = next(reversed(quantized or fitting), None)
    return tuple(replace(each, best=each is best) for each in rows)


def decode_bound(model: Model, fit: Fit, bytes_per_s: float | None) -> float | None:
    """Tokens a second that `bytes_per_s` allows the CPU's share of a token."""
    read = _host_bytes_per_token(model, fit)
    return bytes_per_s / read if bytes_per_s and read else None


def _host_bytes_per_token(model: Model, fit: Fit) -> int:
    """What the CPU reads for one token at a full context: its layers once, of experts those chosen, and the cache."""
    info, weights, placement = model.info, model.weights, fit.placement
    first = model.n_slots - placement.gpu_layers
    chosen = info.n_expert_used / info.n_expert if info.n_expert else 1.0
    total = sum(tensor.n_bytes for layer in weights.layers[:first] for tensor in layer)
    experts = weights.experts[: max(first, placement.cpu_expert_layers)]
    total += int(sum(tensor.n_bytes for layer in experts for tensor in layer) * chosen)
    if placement.gpu_layers == 0:
        total += sum(tensor.n_bytes for tensor in (*weights.output, *weights.tied))
    kv = kv_bytes(info, weights, fit.sizes)
    return total + sum(kv if placement.kv_on_cpu else kv[:first])


def _scaled(weights: Weights, factor: float) -> Weights:
    def scale(tensors: Iterable[TensorInfo]) -> tuple[TensorInfo, ...]:
        return tuple(tensor._replace(n_bytes=int(tensor.n_bytes * factor)) for tensor in tensors)

    return weights._replace(
        input=scale(weights.input),
        layers=tuple(map(scale, weights.layers)),
        experts=tuple(map(scale, weights.experts)),
        output=scale(weights.output),
        tied=scale(weights.tied),
    )
