"""Tensors that are not in memory: where their rows come from and in what order, read a piece at a time.

Layout changes (permuting, stacking, slicing) work on the stored numbers, so a bf16 tensor costs its own size;
values change in `encode`, piece by piece. numpy has no bf16: such a piece is uint16 with dtype "BF16" beside it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from llmrun.convert.checkpoint import StoredTensor
from llmrun.errors import ConvertError

Array = npt.NDArray[Any]

PIECE_BYTES = 4 << 20

_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
WEIGHT_DTYPES = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True)
class Weight:
    """`pieces()` yields whole rows, in order; put end to end they are the tensor. `plus` is still to be added."""

    shape: tuple[int, ...]
    dtype: str
    pieces: Callable[[], Iterator[Array]]
    plus: float = 0.0

    def read(self) -> Array:
        """The whole tensor, in its stored numbers."""
        pieces = list(self.pieces())
        whole = pieces[0] if len(pieces) == 1 else np.concatenate([piece.reshape(-1) for piece in pieces])
        return whole.reshape(self.shape)


def stored(tensor: StoredTensor) -> Weight:
    """A tensor as its shard has it, in pieces of about PIECE_BYTES."""
    return Weight(tensor.shape, tensor.dtype, lambda: _read_pieces(tensor))


def _read_pieces(tensor: StoredTensor) -> Iterator[Array]:
    row = tensor.shape[-1] if tensor.shape else 1
    n_rows = prod(tensor.shape[:-1])
    row_bytes = tensor.n_bytes // n_rows if n_rows else 0
    step = max(1, PIECE_BYTES // row_bytes) if row_bytes else max(1, n_rows)
    with tensor.path.open("rb", buffering=0) as file:
        file.seek(tensor.offset)
        for start in range(0, n_rows, step):
            rows = min(step, n_rows - start)
            buffer = bytearray(rows * row_bytes)
            _read_into(file.readinto, buffer, tensor)
            yield np.frombuffer(buffer, dtype=_NUMPY[tensor.dtype]).reshape(rows, row)


def _read_into(readinto: Callable[[memoryview], int | None], buffer: bytearray, tensor: StoredTensor) -> None:
    view = memoryview(buffer)
    while len(view):
        n = readinto(view)
        if not n:
            raise ConvertError(f"{tensor.path.name} was cut short while it was read", "fetch the checkpoint again")
        view = view[n:]


def values(array: Sequence[float]) -> Weight:
    """Computed numbers (rope factors) as a one-dimensional F32 tensor."""
    data = np.array(array, dtype=np.float32)
    return Weight(data.shape, "F32", lambda: iter([data]))


def changed(weight: Weight, change: Callable[[Array], Array], shape: tuple[int, ...] | None = None) -> Weight:
    """The tensor after a change of layout, for which it is read whole."""
    new = weight.shape if shape is None else shape
    return replace(weight, shape=new, pieces=lambda: iter([change(weight.read()).reshape(new)]))


def stack(weights: Sequence[Weight]) -> Weight:
    """Tensors of one shape as one with a further, first dimension: one of them is in memory at a time."""
    first = weights[0]
    if odd := next((w for w in weights if (w.shape, w.dtype) != (first.shape, first.dtype)), None):
        raise ConvertError(
            f"tensors that belong together differ: {first.dtype} {first.shape} and {odd.dtype} {odd.shape}",
            "the checkpoint is damaged, or not what its config.json says",
        )

    def pieces() -> Iterator[Array]:
        for weight in weights:
            yield from weight.pieces()

    return replace(first, shape=(len(weights), *first.shape), pieces=pieces)


def rows(weight: Weight, start: int, stop: int) -> Weight:
    """Rows start..stop of a two-dimensional tensor."""
    stop = min(stop, weight.shape[0])

    def pieces() -> Iterator[Array]:
        at = 0
        for piece in weight.pieces():
            part = piece[max(0, start - at) : max(0, stop - at)]
            at += len(piece)
            if len(part):
                yield part
            if at >= stop:
                return

    return replace(weight, shape=(stop - start, *weight.shape[1:]), pieces=pieces)


def transposed(weight: Weight) -> Weight:
    """Rows and columns changed over."""
    return changed(weight, lambda array: np.ascontiguousarray(array.T), weight.shape[::-1])


def permuted(weight: Weight, n_head: int) -> Weight:
    """From Hugging Face's rotary order (halves) to the interleaved one that llama.cpp's LLaMA graph rotates."""
    n = weight.shape[0]
    if n % (2 * n_head):
        raise ConvertError(
            f"{n} rows of a query or key tensor cannot be split into {n_head} heads",
            "config.json and the weights do not belong together",
        )
    return changed(
        weight,
        lambda array: np.ascontiguousarray(array.reshape(n_head, 2, n // n_head // 2, -1).swapaxes(1, 2)),
    )
