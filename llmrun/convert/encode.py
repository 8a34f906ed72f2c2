"""Output types: which one each tensor gets, and numbers to bytes. The rules are llama.cpp's converter's.

https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from llmrun.convert.weight import Array, Weight
from llmrun.errors import ConvertError

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")

_FILE_TYPES = {
    Type.F32: gguf.LlamaFileType.ALL_F32,
    Type.F16: gguf.LlamaFileType.MOSTLY_F16,
    Type.BF16: gguf.LlamaFileType.MOSTLY_BF16,
    Type.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
}
_STORED = {"F32": Type.F32, "F16": Type.F16, "BF16": Type.BF16}
_ALWAYS_F32 = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "token_types.weight")


@dataclass(frozen=True)
class Output:
    """One tensor of the file to be written; `n_bytes` excludes padding."""

    name: str
    weight: Weight
    type: Type

    @property
    def n_bytes(self) -> int:
        block, size = gguf.GGML_QUANT_SIZES[self.type]
        return prod(self.weight.shape) // int(block) * int(size)


def wanted_type(outtype: str, weights: Iterable[Weight]) -> Type:
    """`auto` is the type of the first 16-bit matrix of the checkpoint, else F16: config.json's dtype may lie."""
    if outtype != "auto":
        return Type[outtype.upper()]
    found = (w.dtype for w in weights if len(w.shape) >= 2 and w.dtype in ("BF16", "F16"))
    return _STORED[next(found, "F16")]


def file_type(wanted: Type) -> gguf.LlamaFileType:
    return _FILE_TYPES[wanted]


def tensor_type(name: str, shape: tuple[int, ...], wanted: Type) -> Type:
    """Vectors, norms and what ggml's kernels want exact stay F32; rows that no block fits become F16."""
    exact = len(shape) <= 1 or name.endswith("_norm.weight") or not name.endswith(".weight")
    if exact or name.removeprefix("blk.").split(".", 1)[-1] in _ALWAYS_F32 or name in _ALWAYS_F32:
        return Type.F32
    if shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0]:
        return Type.F16
    return wanted


def encode(output: Output, odd: dict[str, int]) -> Iterator[memoryview]:
    """The tensor's bytes, piece by piece; `odd[name]` counts numbers that were not finite in the checkpoint.

    Raises ConvertError where a finite number becomes infinite in the new type: such a file answers nonsense.
    """
    weight, lost = output.weight, 0
    for piece in weight.pieces():
        if _STORED.get(weight.dtype) is output.type and not weight.plus:
            data = numbers = piece
        else:
            numbers = _numbers(piece, weight.dtype)
            if weight.plus:
                numbers = numbers + numbers.dtype.type(weight.plus)
            with np.errstate(over="ignore", invalid="ignore"):
                data = np.ascontiguousarray(gguf.quants.quantize(numbers, output.type))
        if bad := _not_finite(data, output.type):
            before = bad if data is numbers else int(np.count_nonzero(~np.isfinite(numbers)))
            lost += max(0, bad - before)
            if before:
                odd[output.name] = odd.get(output.name, 0) + before
        yield data.reshape(-1).data.cast("B")
    if lost:
        raise ConvertError(
            f"{lost} {'value' if lost == 1 else 'values'} of {output.name} are too large for {output.type.name}",
            "nothing was written; take --type bf16 or f32, which hold them",
        )


def _numbers(piece: Array, dtype: str) -> Array:
    """float16 as it is, all else as float32: the arithmetic of llama.cpp's converter, rounding included."""
    if dtype == "BF16":
        return (piece.astype(np.uint32) << 16).view(np.float32)
    return piece if dtype == "F16" else piece.astype(np.float32, copy=False)


def _not_finite(data: Array, type: Type) -> int:
    if type is Type.F32:
        return data.size - int(np.count_nonzero(np.isfinite(data)))
    if type is Type.Q8_0:
        # A block's scale is an F16, and 32 numbers share its fate.
        bits, exponent = data.reshape(-1, 34)[:, :2].copy().view(np.uint16), 0x7C00
    else:
        bits, exponent = data.view(np.uint16), 0x7F80 if type is Type.BF16 else 0x7C00
    return int(np.count_nonzero((bits & exponent) == exponent))
