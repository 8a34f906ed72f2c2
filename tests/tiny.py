"""Tiny models with random weights, written in milliseconds: what most tests run on.

A file is the same for the same arguments. Any text survives tokenizing and detokenizing: the vocabulary is
all bytes, a few merges, and control tokens. What a model says is noise; compare tokens, never words.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ("Ġ t", "h e", "i n", "Ġ a", "Ġt he", "e r", "o n", "Ġ Ġ")
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
N_VOCAB = 256 + len(MERGES) + len(CONTROL_TOKENS)
EOS, IM_START, IM_END, PAD = range(N_VOCAB - len(CONTROL_TOKENS), N_VOCAB)

ARCHS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "bert")
_POST_NORM = ("gemma2", "gemma3")
_QK_NORM = ("qwen3", "gemma3")


@dataclass(frozen=True)
class Shape:
    """The numbers a tiny model is made of; the names are llama.cpp's."""

    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    n_expert: int
    tied: bool

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head


def tiny_gguf(
    path: Path,
    *,
    arch: str = "llama",
    seed: int = 0,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    n_vocab: int = N_VOCAB,
    n_ctx_train: int = 2048,
    n_expert: int = 0,
    sliding_window: int = 32,
    qtype: str = "F32",
    tied: bool = False,
    template: str | None = CHATML,
    metadata: Mapping[str, Any] | None = None,
    tensors: Callable[[str, "np.ndarray[Any, Any]"], "np.ndarray[Any, Any] | None"] | None = None,
) -> Path:
    """Write a model of random weights to `path` and return it.

    n_head_kv == n_head is MHA, 1 is MQA. n_expert > 0 makes a mixture of experts, 2 used (llama only).
    gemma2 and gemma3 have a sliding window and tied embeddings; gemma3 has one full layer in 6. bert embeds
    and does not generate. `qtype` is what the `gguf` package can write: F32, F16, BF16, Q4_0, Q4_1, Q5_0,
    Q5_1, Q8_0 (K-quants come from quantizing a model with n_embd and n_ff that 256 divides). `metadata` adds,
    replaces or (None) drops keys; a pair (value, GGUFValueType) sets the stored type. `tensors(name, array)`
    may return another array, or None to leave the tensor out.
    """
    tied = tied or arch in _POST_NORM
    n_head_kv = n_head if arch == "bert" else n_head_kv
    shape = Shape(arch, n_layer, n_embd, n_head, n_head_kv, n_ff, n_vocab, n_ctx_train, n_expert, tied)
    writer = gguf.GGUFWriter(path, arch)
    kv: dict[str, Any] = {}
    kv.update(_general(shape, seed, qtype), **_hyperparameters(shape, sliding_window), **_vocabulary(n_vocab))
    if arch == "bert":
        kv["tokenizer.ggml.token_type_count"] = 2
    elif template is not None:
        kv["tokenizer.chat_template"] = template
    kv.update(metadata or {})
    for key, value in kv.items():
        if value is not None:
            _add(writer, key, value)
    for name, array in _weights(shape, np.random.default_rng(seed)):
        kept = tensors(name, array) if tensors else array
        if kept is not None:
            _add_tensor(writer, name, kept, qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_split(folder: Path, n_parts: int = 3, stem: str = "m", **more: Any) -> list[Path]:
    """The same model in parts, named as llama.cpp names them, each with a share of the tensors."""
    names: list[str] = []
    tiny_gguf(folder / f"{stem}.gguf", tensors=lambda name, array: names.append(name) or array, **more)
    (folder / f"{stem}.gguf").unlink()
    parts = []
    for no in range(n_parts):
        keys = {
            "split.no": (no, gguf.GGUFValueType.UINT16),
            "split.count": (n_parts, gguf.GGUFValueType.UINT16),
            "split.tensors.count": (len(names), gguf.GGUFValueType.INT32),
        }
        own = set(names[no::n_parts])
        path = folder / f"{stem}-{no + 1:05}-of-{n_parts:05}.gguf"
        parts.append(
            tiny_gguf(path, metadata=keys, tensors=lambda name, a, own=own: a if name in own else None, **more)
        )
    return parts


def _general(shape: Shape, seed: int, qtype: str) -> dict[str, Any]:
    file_type = "ALL_F32" if qtype == "F32" else f"MOSTLY_{qtype}"
    return {
        "general.name": f"tiny {shape.arch} {seed}",
        "general.type": "model",
        "general.license": "mit",
        "general.file_type": int(gguf.LlamaFileType[file_type]),
        "general.quantization_version": 2,
    }


def _hyperparameters(shape: Shape, sliding_window: int) -> dict[str, Any]:
    norm = "layer_norm_epsilon" if shape.arch == "bert" else "layer_norm_rms_epsilon"
    kv: dict[str, Any] = {
        "context_length": shape.n_ctx_train,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        f"attention.{norm}": 1e-5 if shape.arch != "bert" else 1e-12,
    }
    if shape.arch == "bert":
        kv |= {"attention.causal": False, "pooling_type": int(gguf.PoolingType.MEAN)}
    else:
        kv |= {"rope.dimension_count": shape.head_dim, "rope.freq_base": 10000.0, "vocab_size": shape.n_vocab}
    if shape.arch in (*_POST_NORM, "qwen3"):
        kv |= {"attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim}
    if shape.arch in _POST_NORM:
        kv["attention.sliding_window"] = sliding_window
    if shape.arch == "gemma2":
        kv |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    if shape.n_expert:
        kv |= {"expert_count": shape.n_expert, "expert_used_count": 2}
    return {f"{shape.arch}.{key}": value for key, value in kv.items()}


def byte_characters() -> dict[int, str]:
    """How byte-level BPE writes each byte as a printable character (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return {byte: chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)}


def _vocabulary(n_vocab: int) -> dict[str, Any]:
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*byte_characters().values(), *merged, *CONTROL_TOKENS]
    unused = [f"<unused{i}>" for i in range(n_vocab - len(tokens))]
    types = [gguf.TokenType.NORMAL] * (256 + len(MERGES))
    types += [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS) + [gguf.TokenType.UNUSED] * len(unused)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens + unused,
        "tokenizer.ggml.token_type": [int(t) for t in types],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": EOS,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.padding_token_id": PAD,
        "tokenizer.ggml.add_bos_token": False,
    }


def _weights(shape: Shape, rng: np.random.Generator) -> Iterator[tuple[str, "np.ndarray[Any, Any]"]]:
    """Names as llama.cpp knows them; arrays in numpy's order, so rows are inputs of one output."""

    def matrix(*dims: int, scale: float | None = None) -> "np.ndarray[Any, Any]":
        spread = dims[-1] ** -0.5 if scale is None else scale
        return (rng.standard_normal(dims) * spread).astype(np.float32)

    def norm(n: int) -> "np.ndarray[Any, Any]":
        # Gemma's converter has added the 1 already, so all norms are near 1 in a GGUF.
        return (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)

    # Tied embeddings are kept small, else each token's own row wins and the model repeats its input.
    yield "token_embd.weight", matrix(shape.n_vocab, shape.n_embd, scale=0.05 if shape.tied else 1.0)
    if shape.arch == "bert":
        yield from _bert_weights(shape, matrix, norm)
        return
    yield "output_norm.weight", norm(shape.n_embd)
    if not shape.tied:
        yield "output.weight", matrix(shape.n_vocab, shape.n_embd)
    for layer in range(shape.n_layer):
        for name, array in _layer_weights(shape, matrix, norm):
            yield f"blk.{layer}.{name}", array


def _layer_weights(
    shape: Shape, matrix: Callable[..., "np.ndarray[Any, Any]"], norm: Callable[[int], "np.ndarray[Any, Any]"]
) -> Iterator[tuple[str, "np.ndarray[Any, Any]"]]:
    n_embd, n_ff, n_kv = shape.n_embd, shape.n_ff, shape.head_dim * shape.n_head_kv
    yield "attn_norm.weight", norm(n_embd)
    for name, rows in (("q", n_embd), ("k", n_kv), ("v", n_kv)):
        yield f"attn_{name}.weight", matrix(rows, n_embd)
        if shape.arch == "qwen2":
            yield f"attn_{name}.bias", matrix(rows)
    yield "attn_output.weight", matrix(n_embd, n_embd)
    if shape.arch in _QK_NORM:
        yield "attn_q_norm.weight", norm(shape.head_dim)
        yield "attn_k_norm.weight", norm(shape.head_dim)
    if shape.arch in _POST_NORM:
        yield "post_attention_norm.weight", norm(n_embd)
        yield "post_ffw_norm.weight", norm(n_embd)
    yield "ffn_norm.weight", norm(n_embd)
    if shape.n_expert:
        yield "ffn_gate_inp.weight", matrix(shape.n_expert, n_embd)
    experts = (shape.n_expert,) if shape.n_expert else ()
    suffix = "_exps" if shape.n_expert else ""
    yield f"ffn_gate{suffix}.weight", matrix(*experts, n_ff, n_embd)
    yield f"ffn_up{suffix}.weight", matrix(*experts, n_ff, n_embd)
    yield f"ffn_down{suffix}.weight", matrix(*experts, n_embd, n_ff)


def _bert_weights(
    shape: Shape, matrix: Callable[..., "np.ndarray[Any, Any]"], norm: Callable[[int], "np.ndarray[Any, Any]"]
) -> Iterator[tuple[str, "np.ndarray[Any, Any]"]]:
    n_embd, n_ff = shape.n_embd, shape.n_ff
    yield "position_embd.weight", matrix(shape.n_ctx_train, n_embd)
    yield "token_types.weight", matrix(2, n_embd)
    yield "token_embd_norm.weight", norm(n_embd)
    yield "token_embd_norm.bias", matrix(n_embd)
    for layer in range(shape.n_layer):
        linears = [(f"attn_{part}", n_embd, n_embd) for part in ("q", "k", "v", "output")]
        for name, rows, columns in [*linears, ("ffn_up", n_ff, n_embd), ("ffn_down", n_embd, n_ff)]:
            yield f"blk.{layer}.{name}.weight", matrix(rows, columns)
            yield f"blk.{layer}.{name}.bias", matrix(rows)
        for name in ("attn_output_norm", "layer_output_norm"):
            yield f"blk.{layer}.{name}.weight", norm(n_embd)
            yield f"blk.{layer}.{name}.bias", matrix(n_embd)


def retype(path: Path, name: str, type_id: int, n_bytes: int) -> None:
    """Say in the tensor table that F32 tensor `name` is of another type, and cut its data to `n_bytes`.

    For types that the `gguf` package cannot write. Later tensors move up, so the file stays consistent.
    """
    from llmrun.gguf.header import open_header

    header, data = open_header(path), bytearray(path.read_bytes())
    tensor = next(tensor for tensor in header.tensors if tensor.name == name)
    moved = _padded(tensor.n_bytes) - _padded(n_bytes)
    for other in header.tensors:
        at = data.index(struct.pack("<Q", len(other.name)) + other.name.encode()) + 8 + len(other.name)
        at += 4 + 8 * len(other.shape)
        if other is tensor:
            data[at : at + 4] = struct.pack("<I", type_id)
        elif other.offset > tensor.offset:
            data[at + 4 : at + 12] = struct.pack("<Q", other.offset - moved)
    start = header.data_offset + tensor.offset
    data[start : start + _padded(tensor.n_bytes)] = data[start : start + _padded(n_bytes)]
    path.write_bytes(data)


def _padded(n_bytes: int) -> int:
    return (n_bytes + 31) // 32 * 32


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, tuple):
        writer.add_key_value(key, *value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, (str, bytes)):
        writer.add_key_value(key, value, gguf.GGUFValueType.STRING)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: "np.ndarray[Any, Any]", qtype: str) -> None:
    """As llama-quantize does: only matrices are quantized; norms, biases and an expert router stay F32."""
    keep = array.ndim < 2 or qtype == "F32" or array.dtype != np.float32 or array.shape[-1] % 32
    if keep or "ffn_gate_inp" in name or name.startswith(("position_embd", "token_types")):
        writer.add_tensor(name, array)
        return
    wanted = gguf.GGMLQuantizationType[qtype]
    if wanted == gguf.GGMLQuantizationType.F16:
        writer.add_tensor(name, array.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quantize(array, wanted), raw_dtype=wanted)
