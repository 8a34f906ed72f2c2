"""How long the result file will be, to the byte: metadata as the library rewrites it, tensor table, padded tensors.

Mirrors `llama_model_quantize_impl` and `gguf_write_to_buf` of llama.cpp.
"""

import re
from collections.abc import Sequence

from llmrun.gguf.header import Header, TensorInfo
from llmrun.gguf.values import ARRAY, SCALARS, STRING, UINT32, NumberArray, StringArray, Value
from llmrun.quant.call import MatrixFile, Wish, imatrix_metadata

_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
_SPLIT_BYTES = sum(8 + len(key) + 4 + size for key, size in zip(_SPLIT_KEYS, (2, 2, 4), strict=True))
_PADDING = 32  # GGUF_DEFAULT_ALIGNMENT, whatever the input's
_LAYER = re.compile(r"^(blk\.)(\d+)(\..*)$")


class FileLayout:
    """The tensors of the result, in its order, named as there. `origin` has the name in the source by that name."""

    def __init__(self, headers: Sequence[Header], wish: Wish, matrix: MatrixFile | None) -> None:
        self._headers = headers
        self._keep_split = wish.keep_split and len(headers) > 1
        self._matrix = matrix
        self.tensors: list[TensorInfo] = []
        self.origin: dict[str, str] = {}
        self._part_of: list[int] = []
        self._pruned = bool(wish.prune)
        rows = [(tensor, part) for part, header in enumerate(headers) for tensor in header.tensors]
        if not self._keep_split:
            rows.sort(key=lambda row: _order(row[0].name))
        for tensor, part in rows:
            name = _renamed(tensor.name, wish.prune)
            if name:
                self.origin[name] = tensor.name
                self._part_of.append(part if self._keep_split else 0)
                self.tensors.append(TensorInfo(name, tensor.shape, tensor.type, tensor.offset, tensor.n_bytes))

    def part_sizes(self, tensor_bytes: Sequence[int]) -> list[int]:
        """Bytes of each file, for these sizes of the tensors."""
        n_parts = len(self._headers) if self._keep_split else 1
        heads = [24 + (_SPLIT_BYTES if self._keep_split else 0) for _ in range(n_parts)]
        heads[0] += self._metadata_bytes()
        data = [0] * n_parts
        for tensor, part, n_bytes in zip(self.tensors, self._part_of, tensor_bytes, strict=True):
            heads[part] += 8 + len(tensor.name.encode()) + 4 + 8 * _n_dims(tensor.shape) + 4 + 8
            data[part] += _pad(n_bytes)
        return [_pad(head) + n_bytes for head, n_bytes in zip(heads, data, strict=True)]

    def _metadata_bytes(self) -> int:
        header = self._headers[0]
        arch = header.metadata.get("general.architecture")
        rewritten: dict[str, int] = {"general.quantization_version": 4, "general.file_type": 4}
        if self._pruned:
            rewritten[f"{arch}.block_count"] = 4
        if self._matrix is not None:
            for key, value in imatrix_metadata(self._matrix).items():
                rewritten[key] = 4 if isinstance(value, int) else 8 + len(value)
        total = sum(8 + len(key) + 4 + n_bytes for key, n_bytes in rewritten.items())
        for key, kept in header.metadata.items():
            if key not in rewritten and key not in _SPLIT_KEYS:
                total += 8 + len(key.encode()) + 4 + _value_bytes(kept, header.value_types[key])
        return total


def _value_bytes(value: Value, type: int) -> int:
    if isinstance(value, NumberArray | StringArray):
        return 4 + 8 + len(value.raw)
    if isinstance(value, str):
        return 8 + len(value.encode())
    return SCALARS[type if type not in (ARRAY, STRING) else UINT32].size


def _order(name: str) -> tuple[int, str]:
    """As the library's map of weights sorts: by layer, then by name."""
    found = _LAYER.match(name)
    return (int(found[2]) if found else -1, name)


def _renamed(name: str, prune: Sequence[int]) -> str:
    """The tensor's name when the layers `prune` are gone; "" when it goes with them."""
    found = _LAYER.match(name)
    if not found or not prune:
        return name
    layer = int(found[2])
    return "" if layer in prune else f"{found[1]}{layer - sum(gone < layer for gone in prune)}{found[3]}"


def _n_dims(shape: Sequence[int]) -> int:
    n = len(shape)
    while n > 1 and shape[n - 1] == 1:
        n -= 1
    return n


def _pad(n: int) -> int:
    return (n + _PADDING - 1) // _PADDING * _PADDING
