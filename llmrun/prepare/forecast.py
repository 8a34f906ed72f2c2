"""What a model would need of this machine, before anything of it is loaded, or even here: for `plan`."""

from dataclasses import dataclass

from llmrun.gguf.info import ModelInfo, model_info
from llmrun.machine.bandwidth import Bandwidth, memory_bandwidth
from llmrun.machine.inventory import Machine
from llmrun.models.catalog import load_catalog
from llmrun.models.headers import other_quants, read_headers
from llmrun.models.resolve import resolve
from llmrun.models.store import Store
from llmrun.plan.fit import problem_of
from llmrun.plan.table import QuantRow, Row, context_rows, longest_contexts, quant_rows
from llmrun.prepare.planning import plan_wish, this_machine, weights_budget
from llmrun.prepare.settings import ContextWish, Room
from llmrun.report import Report

QUANTS_CTX = 8192  # tokens of context for which quantizations are compared


@dataclass(frozen=True)
class LongestContext:
    """In tokens, 0 where not even a short one fits."""

    kv_type: str
    n_ctx: int


@dataclass(frozen=True)
class ModelFacts:
    """`is_here`: on this machine; else only its header was read, at its source."""

    ref: str
    source: str
    arch: str
    quant: str
    n_params: int
    size_bytes: int
    n_layer: int
    n_ctx_train: int
    is_here: bool


@dataclass(frozen=True)
class Forecast:
    """What `plan --json` prints. `quants` is empty for a model that is here, or whose source has one only."""

    model: ModelFacts
    machine: Machine
    bandwidth: Bandwidth
    rows: tuple[Row, ...]
    longest_contexts: tuple[LongestContext, ...]
    quants: tuple[QuantRow, ...]


def forecast(reference: str, wish: ContextWish, report: Report) -> Forecast:
    """Downloads headers only. Raises what finding the model raises, and UsageError for settings it cannot have."""
    machine = this_machine(wish.rpc)
    resolved = resolve(reference, load_catalog(), Store(), report)
    headers = read_headers(resolved, report, weights_budget(machine))
    info = model_info(*headers.parts)
    tensors = tuple(tensor for part in headers.parts for tensor in part.tensors)
    problem = problem_of(info, tensors, machine, plan_wish(wish, Room(0, 0)))
    bandwidth = memory_bandwidth(machine.cores, machine.memory.total_bytes)
    quants: tuple[QuantRow, ...] = ()
    if not headers.is_here:
        n_ctx = wish.n_ctx or min(QUANTS_CTX, info.n_ctx_train or QUANTS_CTX)
        compared = problem_of(info, tensors, machine, plan_wish(wish, Room(n_ctx, n_ctx)))
        quants = quant_rows(compared, other_quants(resolved, report), info.size_bytes, bandwidth.bytes_per_s)
    return Forecast(
        model=_facts(info, resolved.name, headers.source, headers.is_here),
        machine=machine,
        bandwidth=bandwidth,
        rows=context_rows(problem, bandwidth.bytes_per_s),
        longest_contexts=tuple(LongestContext(*longest) for longest in longest_contexts(problem)),
        quants=quants,
    )


def _facts(info: ModelInfo, ref: str, source: str, is_here: bool) -> ModelFacts:
    return ModelFacts(
        ref, source, info.arch, info.quant, info.n_params, info.size_bytes, info.n_layer, info.n_ctx_train, is_here
    )
