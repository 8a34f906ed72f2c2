"""How near a test comes to what the memory can deliver: bytes that must be read per pass, and what bounds it. Pure.

Every decoded token reads the weights that take part in it once, and the keys and values of all tokens before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmrun.bench.row import Row
from llmrun.bench.subject import Subject
from llmrun.gguf.info import ModelInfo
from llmrun.gguf.layers import Layer
from llmrun.plan.kv import CACHELESS, STATE_ELEMENT_BYTES, row_bytes
from llmrun.plan.weights import Weights, sort_tensors

NEAR = 0.5  # of a ceiling: beyond it, that ceiling is what bounds a test


def weight_bytes(info: ModelInfo, weights: Weights, n_tokens: int = 1) -> int:
    """Bytes of weights that a pass over `n_tokens` tokens reads. Of the embedding only single rows are read; of
    routed experts those that at least one token is expected to choose, were they chosen by lot."""
    groups = (weights.output, weights.tied, *weights.layers)
    always = sum(tensor.n_bytes for group in groups for tensor in group)
    routed = sum(tensor.n_bytes for group in weights.experts for tensor in group)
    share = 1.0
    if info.n_expert:
        share = 1 - (1 - min(1.0, info.n_expert_used / info.n_expert)) ** n_tokens
    return always + round(routed * share)


def kv_read_bytes(info: ModelInfo, kv_type: tuple[str, str], n_past: float) -> float:
    """Bytes of keys, values and state that one more token reads after `n_past` tokens (a mean may be fractional)."""
    if info.arch in CACHELESS:
        return 0
    return sum(_layer_bytes(info, layer, kv_type, n_past) for layer in info.layers)


def _layer_bytes(info: ModelInfo, layer: Layer, kv_type: tuple[str, str], n_past: float) -> float:
    read = 0.0
    if layer.has_kv:
        seen = min(n_past, info.sliding_window) if layer.sliding and info.sliding_window else n_past
        k_type, v_type = kv_type
        k_bytes = row_bytes(k_type, layer.head_dim_k * layer.n_head_kv)
        read += seen * (k_bytes + row_bytes(v_type, layer.head_dim_v * layer.n_head_kv))
    if layer.recurrent:
        read += (info.recurrent.conv + info.recurrent.state) * STATE_ELEMENT_BYTES
    return read


def decode_bytes_per_s(subject: Subject, row: Row, n_past: float, passes_per_s: float) -> float:
    """Bytes per second that decoding reads, with one token of `concurrency` sequences in each pass."""
    n = row.concurrency
    weights = weight_bytes(subject.info, sort_tensors(subject.tensors, subject.info.n_layer), n)
    k_type, _, v_type = row.kv_type.partition("/")
    per_pass = weights + n * kv_read_bytes(subject.info, (k_type, v_type or k_type), n_past)
    return per_pass * passes_per_s


def prefill_bytes_per_s(subject: Subject, row: Row) -> float:
    """The same for a prompt, whose passes are of `ubatch` tokens; keys and values are left out, being few."""
    n_pass = min(row.ubatch, row.n_prompt)
    weights = weight_bytes(subject.info, sort_tensors(subject.tensors, subject.info.n_layer), n_pass)
    return weights * (row.median_tps or 0.0) / n_pass


def mixed_bandwidth(
    total_bytes: int, buffers: Sequence[tuple[str, int]], devices: Mapping[str, float], host: float
) -> float:
    """Bytes per second at which weights of `total_bytes` can be read once where `buffers` (name and bytes, as
    llama.cpp logs them) of them lie on `devices` (bytes per second by name) and the rest in the host's memory. 0
    where one of these is not known."""
    took, left = 0.0, total_bytes
    for buffer, n_bytes in buffers:
        on = [name for name in devices if buffer.startswith(name)]
        if not on:
            continue  # the host's; with mmap such a buffer spans what lies between, so its size says little
        if not devices[max(on, key=len)]:
            return 0.0
        took += n_bytes / devices[max(on, key=len)]
        left -= n_bytes
    if left > 0:
        if not host:
            return 0.0
        took += left / host
    return total_bytes / took if took else 0.0


def with_roofline(subject: Subject, row: Row, bandwidth: float, fastest_tps: float | None) -> Row:
    """The row with its bandwidth and bound. `bandwidth` is that of the memory that holds the weights, 0 where it is
    not known; `fastest_tps` the best prefill seen with these settings, which is what the arithmetic can do."""
    if not row.median_tps or (row.n_prompt and row.n_gen and row.kind == "loop"):
        return row  # prefill and decode in one number
    if row.itl_p50_s:
        used = decode_bytes_per_s(subject, row, row.n_prompt + row.n_gen / 2, 1 / row.itl_p50_s)
    elif row.n_gen:
        used = decode_bytes_per_s(subject, row, row.depth + row.n_gen / 2, row.median_tps)
    else:
        used = prefill_bytes_per_s(subject, row)
    share = used / bandwidth if bandwidth else None
    compute = None if not fastest_tps else row.median_tps / fastest_tps
    return replace(row, bandwidth_bytes_per_s=used, bandwidth_share=share, bound=bound(share, compute))


def bound(memory_share: float | None, compute_share: float | None) -> str | None:
    """What holds a test back, from its shares of both ceilings: memory, compute, or overhead where it is far from
    each. Without a prefill to compare with, compute and overhead cannot be told apart."""
    memory, compute = memory_share or 0.0, compute_share or 0.0
    if max(memory, compute) >= NEAR:
        return "memory" if memory >= compute else "compute"
    if memory_share is None:
        return None
    return "overhead" if compute_share is not None else "compute or overhead"
