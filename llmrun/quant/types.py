"""The types that quantize makes: which exist, what their bits are, and what a person means by a name.

Source: `llama_ftype_get_default_type` and `tensor_requires_imatrix` of llama.cpp (src/llama-quant.cpp).
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from llmrun.errors import UsageError
from llmrun.gguf.types import FILE_TYPES, TENSOR_TYPES, TensorType, parse_quant

TENSOR_TYPES_BY_NAME = {type.name: type for type in TENSOR_TYPES.values()}

# File type -> the tensor type that most of its tensors get.
_DEFAULTS = {
    "Q2_K_S": "Q2_K",
    "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
    "IQ2_S": "IQ2_XS",
    "IQ2_M": "IQ2_S",
    "IQ3_XS": "IQ3_S",
    "IQ3_M": "IQ3_S",
    "MXFP4_MOE": "MXFP4",
}
_NOT_MADE = ("NVFP4", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8")
DEFAULT_TENSOR_TYPE: dict[str, TensorType] = {
    name: TENSOR_TYPES_BY_NAME[_DEFAULTS.get(name, name)] for name in FILE_TYPES.values() if name not in _NOT_MADE
}
"""Every file type that can be made, in the order of llama.cpp's numbers."""

COPY = "COPY"
"""No quantization: tensors stay as they are (to join the parts of a split model, or to prune layers)."""

FLOATS = ("F32", "F16", "BF16")
_NEED_IMATRIX = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
_ABORT_WITHOUT = ("IQ1_S", "IQ2_XXS", "IQ2_XS")  # ggml_quantize_requires_imatrix: the process ends there
_NOT_TENSOR_TYPES = ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "NVFP4")
_MADE_TENSOR_TYPES = [name for name in TENSOR_TYPES_BY_NAME if name not in _NOT_TENSOR_TYPES]
NO_IMATRIX_HINT = "Q2_K, Q3_K_M, IQ3_S, IQ4_XS and all larger types need no matrix"


def needs_imatrix(tensor_name: str, tensor_type: str, file_type: str) -> bool:
    """Whether llama.cpp refuses to make this tensor without an importance matrix, or aborts over it."""
    if tensor_type in _ABORT_WITHOUT:
        return True
    if tensor_name in ("token_embd.weight", "per_layer_token_embd.weight", "output.weight"):
        return False
    return tensor_type in _NEED_IMATRIX or (tensor_type == "Q2_K" and file_type == "Q2_K_S")


def parse_file_type(text: str) -> str:
    """The type a person means, in any spelling, by llama.cpp's number, or by a beginning that only one has.

    Raises UsageError: ambiguous with the list, or unknown with near names.
    """
    found = find_file_type(text)
    if found:
        return found
    begin_alike = [name for name in DEFAULT_TENSOR_TYPE if _squeezed(name).startswith(_squeezed(text))]
    if len(begin_alike) == 1:
        return begin_alike[0]
    if begin_alike and _squeezed(text):
        raise UsageError(f"{text} may be any of {', '.join(begin_alike)}", "name one of them in full")
    raise UsageError(f"no type is called {text!r}", _near(text, DEFAULT_TENSOR_TYPE, "llmrun quantize --list"))


def find_file_type(text: str) -> str | None:
    """The type that `text` names in full, None where it names none."""
    if text.upper() == COPY:
        return COPY
    name = (
        FILE_TYPES.get(int(text), "") if text.isascii() and text.isdecimal() and len(text) < 4 else parse_quant(text)
    )
    return name if name in DEFAULT_TENSOR_TYPE else None


def parse_tensor_type(text: str) -> TensorType:
    """A type of one tensor, such as Q4_K. Raises UsageError."""
    for name in _MADE_TENSOR_TYPES:
        if _squeezed(name) == _squeezed(text):
            return TENSOR_TYPES_BY_NAME[name]
    hint = _near(text, _MADE_TENSOR_TYPES, f"one of {', '.join(_MADE_TENSOR_TYPES)}")
    raise UsageError(f"no tensor type is called {text!r}", hint)


def _near(text: str, names: Iterable[str], otherwise: str) -> str:
    by_squeezed = {_squeezed(name): name for name in names}
    near = [by_squeezed[key] for key in get_close_matches(_squeezed(text), by_squeezed, n=4, cutoff=0.3)]
    return f"did you mean {', '.join(near)}?" if near else otherwise


def _squeezed(text: str) -> str:
    return re.sub(r"[-_. ]", "", text).upper()
