"""Bytes of the compute buffer: the largest set of intermediate results that is alive at once.

llama.cpp finds it by building its graph for the largest pass (`graph_reserve`, src/llama-context.cpp) and placing
each tensor in a free block of the right size (ggml/src/ggml-alloc.c). Here the same peak comes from what is alive in
attention, in the feed-forward network and at the logits. Checked against llama.cpp in tests/test_plan_accuracy.py.
"""

from collections.abc import Iterable

from llmrun.gguf.header import TensorInfo
from llmrun.gguf.info import ModelInfo
from llmrun.gguf.layers import Layer
from llmrun.plan.kv import CACHELESS
from llmrun.plan.sizes import KV_TYPES, ContextSizes
from llmrun.plan.weights import Weights

FLOAT = 4


def compute_bytes(info: ModelInfo, weights: Weights, sizes: ContextSizes, with_output: bool) -> int:
    """The compute buffer of a device that runs layers; `with_output`: the logits too."""
    tokens = sizes.n_tokens
    floats = [
        _feed_forward_floats(info, weights),
        _recurrent_floats(info, weights),
        *(_attention_floats(info, layer, sizes) for layer in set(info.layers)),
    ]
    peak = input_bytes(info, sizes) + tokens * FLOAT * max(floats)
    if not with_output:
        return peak
    rows = min(tokens, sizes.n_outputs)
    logits = rows * FLOAT * (info.n_vocab + 2 * info.n_embd)
    return max(peak, logits)


def host_compute_bytes(info: ModelInfo, sizes: ContextSizes) -> int:
    """The CPU's share when every layer runs elsewhere: the inputs and the embeddings of the tokens."""
    return input_bytes(info, sizes) + sizes.n_tokens * FLOAT * info.n_embd


def output_bytes(info: ModelInfo, sizes: ContextSizes) -> int:
    """Where the logits land on the host (`output_reserve`)."""
    return sizes.n_seq_max * FLOAT * info.n_vocab


def input_bytes(info: ModelInfo, sizes: ContextSizes) -> int:
    """Masks, positions, cell numbers and, for a quantized cache, the rotations of keys and values."""
    tokens = sizes.n_tokens
    sliding = any(layer.sliding for layer in info.layers)
    cells = [sizes.cells] if any(not layer.sliding and not layer.recurrent for layer in info.layers) else []
    if info.arch in CACHELESS:
        cells = [tokens]
    if sliding:
        cells.append(sizes.window_cells(info.sliding_window) if info.arch not in CACHELESS else tokens)
    mask_element = 2 if sizes.flash_attn else FLOAT
    total = tokens * (sum(cells) * mask_element + 4 * FLOAT)
    v_width = max((layer.head_dim_v * layer.n_head_kv for layer in info.layers), default=0)
    # A transposed V cache is written element by element, and each has its 64-bit number.
    total += tokens * 8 * len(cells) * (1 + (1 if sizes.flash_attn else v_width))
    if any(KV_TYPES[type].block_size > 1 for type in sizes.kv_type):
        rotation = max((_power_of_two(layer.head_dim_k) for layer in info.layers), default=0)
        total += 2 * rotation * rotation * FLOAT * len(cells)
    return total


def _power_of_two(n: int) -> int:
    """The largest power of two that divides n, 0 for 0."""
    return n & -n


def _attention_floats(info: ModelInfo, layer: Layer, sizes: ContextSizes) -> int:
    """Floats per token: queries, keys, values and results; without flash attention, every score."""
    queries = layer.n_head * layer.head_dim_k
    keys = layer.n_head_kv * (layer.head_dim_k + layer.head_dim_v)
    if not layer.has_kv and info.arch not in CACHELESS:
        return 0
    if sizes.flash_attn and layer.head_dim_v == 0:  # MLA: queries as projected and as joined, results as wide
        return 4 * queries + 2 * info.n_embd
    if sizes.flash_attn:
        return queries + keys + layer.n_head * layer.head_dim_v + 2 * info.n_embd
    cells = sizes.window_cells(info.sliding_window) if layer.sliding else sizes.cells
    if info.arch in CACHELESS:
        cells = sizes.n_tokens
    return cells * layer.n_head + 5 * info.n_embd


def _feed_forward_floats(info: ModelInfo, weights: Weights) -> int:
    """Floats per token: gate, up and their product, or all chosen experts' results; beside the residual stream."""
    dense = expert = 0
    # In the last layer only the tokens whose logits are wanted go on to the feed-forward network.
    last = max(1, len(weights.layers) - 1)
    for layer, experts in zip(weights.layers[:last], weights.experts[:last], strict=True):
        up, gated = _width(layer, "ffn_up.weight"), _width(layer, "ffn_gate.weight") > 0
        # One matrix alone holds gate and up side by side, or there is no gate.
        dense = max(dense, 3 * up if gated else up * 3 // 2)
        up = max(_width(experts, "ffn_up_exps.weight"), _width(experts, "ffn_gate_up_exps.weight") // 2)
        expert = max(expert, info.n_expert_used * max(3 * up, up + info.n_embd) if up else 0)
    # Blocks of n_embd that attention left free stay idle where they are too small for these results.
    idle = 4 if expert or dense > 6 * info.n_embd else 3 if dense > 3 * info.n_embd else 2
    return max(dense, expert) + idle * info.n_embd


def _width(tensors: Iterable[TensorInfo], kind: str) -> int:
    """Rows of the one tensor of a layer whose name ends in `kind`, else 0."""
    return next((tensor.shape[1] for tensor in tensors if tensor.name.endswith("." + kind)), 0)


def _recurrent_floats(info: ModelInfo, weights: Weights) -> int:
    """Floats per token of a state-space layer: its input projection, the convolution, the scan and its copies."""
    if not any(layer.recurrent for layer in info.layers):
        return 0
    projected = max((_width(layer, "ssm_in.weight") for layer in weights.layers), default=0)
    return projected * 7 // 2 if projected else 6 * info.n_embd
