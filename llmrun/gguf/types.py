"""Tensor types and file types of GGUF as plain tables, and quant names as people spell them.

Source: `enum ggml_type` and `enum llama_ftype` of llama.cpp (ggml/include/ggml.h, include/llama.h).
"""

import re
from typing import NamedTuple


class TensorType(NamedTuple):
    """How a tensor's elements are stored: `block_size` elements in `block_bytes` bytes."""

    id: int
    name: str
    block_size: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_size


_TENSOR_TYPES = (
    TensorType(0, "F32", 1, 4),
    TensorType(1, "F16", 1, 2),
    TensorType(2, "Q4_0", 32, 18),
    TensorType(3, "Q4_1", 32, 20),
    TensorType(6, "Q5_0", 32, 22),
    TensorType(7, "Q5_1", 32, 24),
    TensorType(8, "Q8_0", 32, 34),
    TensorType(9, "Q8_1", 32, 36),
    TensorType(10, "Q2_K", 256, 84),
    TensorType(11, "Q3_K", 256, 110),
    TensorType(12, "Q4_K", 256, 144),
    TensorType(13, "Q5_K", 256, 176),
    TensorType(14, "Q6_K", 256, 210),
    TensorType(15, "Q8_K", 256, 292),
    TensorType(16, "IQ2_XXS", 256, 66),
    TensorType(17, "IQ2_XS", 256, 74),
    TensorType(18, "IQ3_XXS", 256, 98),
    TensorType(19, "IQ1_S", 256, 50),
    TensorType(20, "IQ4_NL", 32, 18),
    TensorType(21, "IQ3_S", 256, 110),
    TensorType(22, "IQ2_S", 256, 82),
    TensorType(23, "IQ4_XS", 256, 136),
    TensorType(24, "I8", 1, 1),
    TensorType(25, "I16", 1, 2),
    TensorType(26, "I32", 1, 4),
    TensorType(27, "I64", 1, 8),
    TensorType(28, "F64", 1, 8),
    TensorType(29, "IQ1_M", 256, 56),
    TensorType(30, "BF16", 1, 2),
    TensorType(34, "TQ1_0", 256, 54),
    TensorType(35, "TQ2_0", 256, 66),
    TensorType(39, "MXFP4", 32, 17),
    TensorType(40, "NVFP4", 64, 36),
    TensorType(41, "Q1_0", 128, 18),
    TensorType(42, "Q2_0", 64, 18),
)
TENSOR_TYPES = {t.id: t for t in _TENSOR_TYPES}

# Types that files held once; llama.cpp refuses them today.
REMOVED_TENSOR_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# `general.file_type`, by the names that quantize takes and file names carry.
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    33: "Q4_0_4_4",
    34: "Q4_0_4_8",
    35: "Q4_0_8_8",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}

# Names that stand for another (llama-quantize's own aliases), and sizes that only file names know.
_ALIASES = {
    "Q3_K": "Q3_K_M",
    "Q4_K": "Q4_K_M",
    "Q5_K": "Q5_K_M",
    "FP16": "F16",
    "FP32": "F32",
    "BFLOAT16": "BF16",
    "MXFP4": "MXFP4_MOE",
}
_FILE_NAME_ONLY = (
    "Q2_K_L", "Q2_K_XL", "Q3_K_XL", "Q4_K_L", "Q4_K_XL", "Q5_K_L", "Q5_K_XL", "Q6_K_L", "Q6_K_XL", "Q8_K_XL",
)  # fmt: skip
_PREFIX = re.compile(r"^(?:UD|I1)[-_.]?(?=I?Q|TQ|MXFP|F|BF)", re.IGNORECASE)


def _squeezed(text: str) -> str:
    return re.sub(r"[-_. ]", "", text).upper()


_BY_SQUEEZED = {_squeezed(name): name for name in (*FILE_TYPES.values(), *_FILE_NAME_ONLY)}
_BY_SQUEEZED |= {_squeezed(alias): name for alias, name in _ALIASES.items()}


def parse_quant(text: str) -> str | None:
    """The quant a person means, in canonical spelling: `q4_k_m`, `Q4KM`, `q4-k` -> Q4_K_M; else None.

    A maker's prefix is kept, since it names another file: `ud-q4_k_xl` -> UD-Q4_K_XL.
    A trailing `.gguf` is dropped.
    """
    text = text.strip().removesuffix(".gguf").removesuffix(".GGUF")
    match = _PREFIX.match(text)
    prefix = match.group().rstrip("-_.").upper() + "-" if match else ""
    name = _BY_SQUEEZED.get(_squeezed(text[match.end() :] if match else text))
    return prefix + name if name else None


def find_file_type(name: str) -> int | None:
    """The `general.file_type` that a quant name stands for, None where llama.cpp has none (`Q4_K_XL`)."""
    canonical = parse_quant(name)
    return next((id for id, known in FILE_TYPES.items() if known == canonical), None)
