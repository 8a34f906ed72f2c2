"""Bytes of the KV cache and of recurrent state, layer by layer, exactly as llama.cpp allocates them.

Sources: `llama_kv_cache` (src/llama-kv-cache.cpp), `llama_kv_cache_iswa`, `llama_kv_cache_dsa`,
`llama_memory_recurrent`, and `llama_model::create_memory` (src/llama-model.cpp), which picks among them.
"""

from llmrun.errors import UsageError
from llmrun.gguf.info import ModelInfo
from llmrun.gguf.layers import Layer
from llmrun.plan.sizes import KV_TYPES, ContextSizes
from llmrun.plan.weights import Weights

# They read a whole text at once and keep nothing (create_memory returns null for them).
CACHELESS = {
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert",
    "gemma-embedding", "wavtokenizer-dec", "dream", "llada", "llada-moe", "rnd1",
}  # fmt: skip
# Their caches have a form of their own; what is counted here is the part that they share with the others.
APPROXIMATE = {"deepseek4", "minimax-m3", "glm5-next", "qwen4exp", "dots3note"}
STATE_ELEMENT_BYTES = 4  # recurrent state is always F32


def kv_bytes(info: ModelInfo, weights: Weights, sizes: ContextSizes) -> tuple[int, ...]:
    """Bytes that each layer keeps: keys and values of its cells, recurrent state, an indexer's keys."""
    if info.arch in CACHELESS:
        return (0,) * info.n_layer
    # Without flash attention V is stored transposed, with the widest layer's rows in all of them.
    v_widest = max((layer.head_dim_v * layer.n_head_kv for layer in info.layers), default=0)
    return tuple(
        _attention_bytes(info, layer, sizes, v_widest)
        + _recurrent_bytes(info, layer, sizes)
        + row_bytes(sizes.kv_type[0], weights.indexer_widths[number]) * sizes.cells
        for number, layer in enumerate(info.layers)
    )


def row_bytes(kv_type: str, width: int) -> int:
    """Bytes of one cell of `width` elements (ggml_row_size)."""
    type = KV_TYPES[kv_type]
    return width // type.block_size * type.block_bytes


def _attention_bytes(info: ModelInfo, layer: Layer, sizes: ContextSizes, v_widest: int) -> int:
    if not layer.has_kv:
        return 0
    cells = sizes.window_cells(info.sliding_window) if layer.sliding else sizes.cells
    v_width = layer.head_dim_v * layer.n_head_kv
    if v_width and not sizes.flash_attn:
        v_width = v_widest
    k_type, v_type = sizes.kv_type
    return cells * (row_bytes(k_type, layer.head_dim_k * layer.n_head_kv) + row_bytes(v_type, v_width))


def _recurrent_bytes(info: ModelInfo, layer: Layer, sizes: ContextSizes) -> int:
    if not layer.recurrent:
        return 0
    return (info.recurrent.conv + info.recurrent.state) * STATE_ELEMENT_BYTES * max(1, sizes.n_seq_max)


def check_kv_type(info: ModelInfo, kv_type: tuple[str, str], flash_attn: str) -> None:
    """Raise UsageError for a cache type that llama.cpp would refuse after loading (llama_init_from_model)."""
    for type in kv_type:
        if type not in KV_TYPES:
            raise UsageError(f"there is no cache type {type}", f"--kv-type takes {', '.join(KV_TYPES)}")
    k_type, v_type = kv_type
    if KV_TYPES[v_type].block_size > 1 and (flash_attn == "off" or info.arch == "grok"):
        raise UsageError(
            f"a {v_type} V cache needs flash attention",
            "leave out -fa off, or take --kv-type f16" if flash_attn == "off" else "take --kv-type f16",
        )
    attention = [layer for layer in info.layers if layer.has_kv]
    if k_type != v_type and any(layer.head_dim_v == 0 for layer in attention):
        raise UsageError(
            f"this model keeps keys and values in one cache: --kv-type {k_type},{v_type} cannot be",
            f"--kv-type {k_type}",
        )
    if flash_attn == "off":
        return
    for layer in attention:
        for type, dim in ((k_type, layer.head_dim_k), (v_type, layer.head_dim_v)):
            if dim % KV_TYPES[type].block_size:
                raise UsageError(
                    f"a {type} cache needs heads of a multiple of {KV_TYPES[type].block_size}; "
                    f"this model's have {dim} elements",
                    "take --kv-type f16",
                )
