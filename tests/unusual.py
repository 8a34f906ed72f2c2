"""Models of architectures that keep their memory differently: only their shapes matter, all weights are zero."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_VOCAB, N_EMBD, N_LAYER = 256, 128, 4


def _write(path: Path, arch: str, metadata: Mapping[str, Any], layers: list[Mapping[str, tuple[int, ...]]]) -> Path:
    """`layers`: for each, tensor names with their shapes in ggml's order (row length first)."""
    writer = gguf.GGUFWriter(path, arch)
    common = {"context_length": 4096, "embedding_length": N_EMBD, "block_count": len(layers), "vocab_size": N_VOCAB}
    common |= {"attention.layer_norm_rms_epsilon": 1e-5}
    for key, value in {**common, **metadata}.items():
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_tokenizer_model("none")
    output_norm = "token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight"
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (N_EMBD, N_VOCAB), output_norm: (N_EMBD,)}
    for number, layer in enumerate(layers):
        tensors |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape[::-1], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _feed_forward(n_ff: int) -> dict[str, tuple[int, ...]]:
    return {
        "ffn_norm.weight": (N_EMBD,),
        "ffn_gate.weight": (N_EMBD, n_ff),
        "ffn_up.weight": (N_EMBD, n_ff),
        "ffn_down.weight": (n_ff, N_EMBD),
    }


def per_layer_heads(path: Path) -> Path:
    """OpenELM: heads and feed-forward widths grow from layer to layer."""
    heads, kv_heads, widths = [2, 4, 4, 8], [1, 1, 2, 2], [128, 256, 384, 512]
    layers = [
        {
            "attn_norm.weight": (N_EMBD,),
            "attn_qkv.weight": (N_EMBD, (head + 2 * kv) * 32),
            "attn_q_norm.weight": (32,),
            "attn_k_norm.weight": (32,),
            "attn_output.weight": (head * 32, N_EMBD),
            **_feed_forward(width),
        }
        for head, kv, width in zip(heads, kv_heads, widths, strict=True)
    ]
    metadata = {
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "feed_forward_length": widths,
        "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 32,
    }  # fmt: skip
    return _write(path, "openelm", metadata, layers)


def mla(path: Path) -> Path:
    """DeepSeek-V2's attention: one low-rank row is cached for keys and values together."""
    n_head, rank, rope, nope, value, n_expert, width = 4, 64, 32, 32, 32, 8, 64
    layers = [
        {
            "attn_norm.weight": (N_EMBD,),
            "attn_q_a_norm.weight": (48,),
            "attn_kv_a_norm.weight": (rank,),
            "attn_q_a.weight": (N_EMBD, 48),
            "attn_q_b.weight": (48, n_head * (nope + rope)),
            "attn_kv_a_mqa.weight": (N_EMBD, rank + rope),
            "attn_k_b.weight": (nope, rank, n_head),
            "attn_v_b.weight": (rank, value, n_head),
            "attn_output.weight": (n_head * value, N_EMBD),
            "ffn_norm.weight": (N_EMBD,),
            "ffn_gate_inp.weight": (N_EMBD, n_expert),
            "ffn_down_exps.weight": (width, N_EMBD, n_expert),
            "ffn_gate_exps.weight": (N_EMBD, width, n_expert),
            "ffn_up_exps.weight": (N_EMBD, width, n_expert),
            "ffn_gate_shexp.weight": (N_EMBD, width),
            "ffn_down_shexp.weight": (width, N_EMBD),
            "ffn_up_shexp.weight": (N_EMBD, width),
        }
    ] * N_LAYER
    metadata = {
        "attention.head_count": n_head, "attention.head_count_kv": 1, "feed_forward_length": 256,
        "attention.q_lora_rank": 48, "attention.kv_lora_rank": rank, "rope.dimension_count": rope,
        "attention.key_length": rank + rope, "attention.value_length": rank,
        "attention.key_length_mla": nope + rope, "attention.value_length_mla": value,
        "expert_count": n_expert, "expert_used_count": 4, "expert_shared_count": 1,
        "expert_feed_forward_length": width,
    }  # fmt: skip
    return _write(path, "deepseek2", metadata, layers)


def recurrent(path: Path) -> Path:
    """Mamba: a state of fixed size for each sequence, and no cache."""
    inner, state, rank, kernel = 2 * N_EMBD, 16, 8, 4
    layers = [
        {
            "attn_norm.weight": (N_EMBD,),
            "ssm_in.weight": (N_EMBD, 2 * inner),
            "ssm_conv1d.weight": (kernel, inner),
            "ssm_conv1d.bias": (inner,),
            "ssm_x.weight": (inner, rank + 2 * state),
            "ssm_dt.weight": (rank, inner),
            "ssm_dt.bias": (inner,),
            "ssm_a": (state, inner),
            "ssm_d": (inner,),
            "ssm_out.weight": (inner, N_EMBD),
        }
    ] * N_LAYER
    metadata = {
        "ssm.conv_kernel": kernel, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank,
        "attention.head_count": 0, "feed_forward_length": 0,
    }  # fmt: skip
    return _write(path, "mamba", metadata, layers)


def hybrid(path: Path) -> Path:
    """LFM2: short convolutions with a small state, and attention in every other layer."""
    convolution = {
        "attn_norm.weight": (N_EMBD,),
        "shortconv.conv.weight": (3, N_EMBD),
        "shortconv.in_proj.weight": (N_EMBD, 3 * N_EMBD),
        "shortconv.out_proj.weight": (N_EMBD, N_EMBD),
        **_feed_forward(256),
    }
    attention = {
        "attn_norm.weight": (N_EMBD,),
        "attn_q.weight": (N_EMBD, N_EMBD),
        "attn_k.weight": (N_EMBD, 64),
        "attn_v.weight": (N_EMBD, 64),
        "attn_q_norm.weight": (32,),
        "attn_k_norm.weight": (32,),
        "attn_output.weight": (N_EMBD, N_EMBD),
        **_feed_forward(256),
    }
    metadata = {
        "attention.head_count": 4, "attention.head_count_kv": [0, 2, 0, 2], "feed_forward_length": 256,
        "shortconv.l_cache": 3, "rope.dimension_count": 32,
    }  # fmt: skip
    return _write(path, "lfm2", metadata, [convolution, attention] * 2)
