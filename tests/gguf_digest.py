"""A GGUF described by digests: every key, every tensor's name, shape, type and bytes, in file order.

Its own reader, so that it can judge llmrun's writer. Arrays are digested as compact JSON, float32 widened to double.
"""

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

_SCALARS = {
    0: ("UINT8", "B"), 1: ("INT8", "b"), 2: ("UINT16", "H"), 3: ("INT16", "h"), 4: ("UINT32", "I"),
    5: ("INT32", "i"), 6: ("FLOAT32", "f"), 7: ("BOOL", "?"), 10: ("UINT64", "Q"), 11: ("INT64", "q"),
    12: ("FLOAT64", "d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}


@dataclass
class Tensor:
    """`shape` in ggml's order; `offset` from the start of the file."""

    name: str
    shape: list[int]
    type: str
    offset: int
    n_bytes: int


class GgufFile:
    """`keys`: type name and value by key. `tensors` in file order."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert self.data[:4] == b"GGUF"
        self._at = 4
        self.version = self._scalar("I")
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        self.keys: dict[str, tuple[str, Any]] = {}
        for _ in range(n_keys):
            key = self._string()
            assert key not in self.keys, f"{key} twice"
            self.keys[key] = self._value(self._scalar("I"))
        self.alignment = self.keys.get("general.alignment", ("", 32))[1]
        self.tensors = list(self._tensors(n_tensors))

    def tensor(self, name: str) -> tuple[Tensor, bytes]:
        found = next(tensor for tensor in self.tensors if tensor.name == name)
        return found, self.data[found.offset : found.offset + found.n_bytes]

    def _scalar(self, code: str) -> Any:
        value = struct.unpack_from(f"<{code}", self.data, self._at)[0]
        self._at += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> str:
        n = self._scalar("Q")
        self._at += n
        return self.data[self._at - n : self._at].decode("utf-8", "surrogateescape")

    def _value(self, kind: int) -> tuple[str, Any]:
        if kind == _STRING:
            return "STRING", self._string()
        if kind != _ARRAY:
            name, code = _SCALARS[kind]
            return name, self._scalar(code)
        inner, n = self._scalar("I"), self._scalar("Q")
        if inner == _STRING:
            return "ARRAY[STRING]", [self._string() for _ in range(n)]
        name, code = _SCALARS[inner]
        values = list(struct.unpack_from(f"<{n}{code}", self.data, self._at))
        self._at += struct.calcsize(f"<{n}{code}")
        return f"ARRAY[{name}]", values

    def _tensors(self, n_tensors: int) -> Iterator[Tensor]:
        infos = []
        for _ in range(n_tensors):
            name = self._string()
            shape = [self._scalar("Q") for _ in range(self._scalar("I"))]
            infos.append((name, shape, self._scalar("I"), self._scalar("Q")))
        start = -(-self._at // self.alignment) * self.alignment
        for name, shape, kind, offset in infos:
            type, block, size = _TYPES[kind]
            yield Tensor(name, shape, type, start + offset, prod(shape) // block * size)


def array_digest(values: list[Any]) -> str:
    text = json.dumps(values, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def describe(path: Path) -> dict[str, Any]:
    """Everything that must be equal for two files to be, with long arrays and tensors as digests."""
    file = GgufFile(path)
    keys = {key: _described(kind, value) for key, (kind, value) in file.keys.items()}
    tensors = [
        {"name": t.name, "shape": t.shape, "type": t.type, "nbytes": t.n_bytes,
         "sha256": hashlib.sha256(file.data[t.offset : t.offset + t.n_bytes]).hexdigest()}
        for t in file.tensors
    ]  # fmt: skip
    return {"version": file.version, "alignment": file.alignment, "file_size": len(file.data), "kv": keys,
            "tensors": tensors}  # fmt: skip


def _described(kind: str, value: Any) -> dict[str, Any]:
    if not kind.startswith("ARRAY"):
        return {"type": kind, "value": value}
    tail = value[-2:] if len(value) > 4 else []
    return {"type": kind, "length": len(value), "sha256": array_digest(value), "head": value[:4], "tail": tail}
