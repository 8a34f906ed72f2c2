"""A GGUF's bytes up to its tensors: magic, keys, tensor table, padding.

gguf's writer packs element by element, which for a vocabulary of 150,000 tokens takes as long as writing 500 MB.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Sequence
from typing import Any

import gguf
from gguf import GGUFValueType as Kind

from llmrun.convert.encode import Output

ALIGNMENT = 32

_CODES = {
    Kind.UINT8: "B", Kind.INT8: "b", Kind.UINT16: "H", Kind.INT16: "h", Kind.UINT32: "I", Kind.INT32: "i",
    Kind.FLOAT32: "f", Kind.BOOL: "?", Kind.UINT64: "Q", Kind.INT64: "q", Kind.FLOAT64: "d",
}  # fmt: skip


def header(kv: gguf.GGUFWriter, outputs: Sequence[Output]) -> bytes:
    """Everything before the first tensor, padded to where that begins."""
    keys = kv.kv_data[0]
    parts = [struct.pack("<IIQQ", gguf.GGUF_MAGIC, gguf.GGUF_VERSION, len(outputs), len(keys))]
    for key, entry in keys.items():
        parts += [_text(key), struct.pack("<I", entry.type), _value(entry.value, entry.type)]
    at = 0
    for output in outputs:
        shape = output.weight.shape[::-1]
        parts += [_text(output.name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, output.type, at)]
        at += -(-output.n_bytes // ALIGNMENT) * ALIGNMENT
    packed = b"".join(parts)
    return packed + bytes(-len(packed) % ALIGNMENT)


def _text(text: str | bytes) -> bytes:
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any, kind: Kind) -> bytes:
    if kind is Kind.STRING:
        return _text(value)
    if kind is not Kind.ARRAY:
        return struct.pack(f"<{_CODES[kind]}", value)
    inner = Kind.UINT8 if isinstance(value, bytes) else Kind.get_type(value[0])
    head = struct.pack("<IQ", inner, len(value))
    if inner is Kind.STRING:
        return head + b"".join(map(_text, value))
    return head + struct.pack(f"<{len(value)}{_CODES[inner]}", *value)
