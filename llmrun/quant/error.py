"""What a tensor type costs a tensor: the error of its product, weighted by what goes in, on a sample of rows."""

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrun.engine import capi
from llmrun.gguf.header import Header, TensorInfo
from llmrun.gguf.types import TensorType
from llmrun.quant.imatrix_file import Imatrix
from llmrun.quant.types import TENSOR_TYPES_BY_NAME, needs_imatrix

# Small to large. Types whose blocks do not divide a tensor's rows are left out for it.
CANDIDATES = (
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "Q3_K", "IQ3_S", "IQ4_XS", "Q4_0", "Q4_K", "IQ4_NL", "Q4_1",
    "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0", "F16",
)  # fmt: skip
_SAMPLE = 16384  # elements of a tensor
_ROWS = (8, 64)


@dataclass(frozen=True)
class Choice:
    """One type for one tensor: its bytes, and the share of the product's energy that becomes error."""

    type: str
    n_bytes: int
    error: float


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes are."""

    path: Path
    header: Header
    tensor: TensorInfo


def choices(place: Place, imatrix: Imatrix | None) -> list[Choice]:
    """Every type the tensor can have, measured."""
    tensor = place.tensor
    rows, experts = _sample(place)
    weights = _weights(tensor, imatrix, experts)
    energy = float(np.einsum("ij,ij,ij->", rows, rows, weights, dtype=np.float64)) or 1.0
    found = []
    for name in CANDIDATES:
        type = TENSOR_TYPES_BY_NAME[name]
        known = imatrix is not None and tensor.name in imatrix.entries
        if tensor.shape[0] % type.block_size or (needs_imatrix("", name, "") and not known):
            continue
        off = rows - through(type, rows, weights if known else None)
        error = float(np.einsum("ij,ij,ij->", off, off, weights, dtype=np.float64)) / energy
        found.append(Choice(name, tensor.n_elements // type.block_size * type.block_bytes, error))
    return found


def measure(places: Sequence[Place], imatrix: Imatrix | None, n_threads: int, tick: Any) -> list[list[Choice]]:
    """The choices of each tensor. `tick()` is called after each."""

    def one(place: Place) -> list[Choice]:
        result = choices(place, imatrix)
        tick()
        return result

    with ThreadPoolExecutor(max(1, n_threads)) as pool:
        return list(pool.map(one, places))


def through(type: TensorType, rows: "np.ndarray[Any, Any]", weights: "np.ndarray[Any, Any] | None") -> Any:
    """Rows as they come back from the type. With weights each row has its own, as each expert has its matrix."""
    from gguf.quants import dequantize

    if type.name == "F16":
        return rows.astype(np.float16).astype(np.float32)
    n_rows, n_columns = rows.shape
    out = np.empty((n_rows, n_columns // type.block_size * type.block_bytes), dtype=np.uint8)
    pointer = ctypes.POINTER(ctypes.c_float)
    quantize = capi.ggml(
        "ggml_quantize_chunk", ctypes.c_size_t, ctypes.c_int, pointer, ctypes.c_void_p,
        ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, pointer,
    )  # fmt: skip
    for i in range(n_rows) if weights is not None else (0,):
        n = 1 if weights is not None else n_rows
        given = weights[i].ctypes.data_as(pointer) if weights is not None else None
        quantize(type.id, rows[i:].ctypes.data_as(pointer), out[i:].ctypes.data, 0, n, n_columns, given)
    import gguf

    return dequantize(out, gguf.GGMLQuantizationType(type.id))


def _sample(place: Place) -> "tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, Any]]":
    """Rows spread evenly over the tensor, and the matrix (expert) that each is of."""
    import gguf
    from gguf.quants import dequantize

    tensor = place.tensor
    n_columns = tensor.shape[0]
    n_rows = tensor.n_elements // n_columns
    n = min(n_rows, max(_ROWS[0], min(_ROWS[1], _SAMPLE // n_columns)))
    index = np.linspace(0, n_rows - 1, n).astype(np.int64)
    row_bytes = tensor.n_bytes // n_rows
    raw = np.memmap(place.path, np.uint8, "r", place.header.data_offset + tensor.offset, (n_rows, row_bytes))[index]
    rows = dequantize(np.ascontiguousarray(raw), gguf.GGMLQuantizationType(tensor.type.id))
    return np.ascontiguousarray(rows.astype(np.float32)), index // (tensor.shape[1] if len(tensor.shape) > 1 else 1)


def _weights(
    tensor: TensorInfo, imatrix: Imatrix | None, experts: "np.ndarray[Any, Any]"
) -> "np.ndarray[Any, np.dtype[np.float32]]":
    entry = imatrix.entries.get(tensor.name) if imatrix else None
    if entry is None or entry.sums.size % tensor.shape[0]:
        return np.ones((len(experts), tensor.shape[0]), dtype=np.float32)
    means = entry.means().reshape(-1, tensor.shape[0])
    return np.ascontiguousarray(means[experts % len(means)])
