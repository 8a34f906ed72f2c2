"""ggml's tensor as a compute graph's callback sees it. Layout: `struct ggml_tensor`, ggml/include/ggml.h."""

import ctypes
import functools

from llmrun.engine import capi

MAX_DIMS, MAX_OP_PARAMS, MAX_SRC, MAX_NAME = 4, 64, 10, 64
F32 = 0


class Tensor(ctypes.Structure):
    """Fields up to the name; what comes after is never read."""


Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * MAX_DIMS),
    ("nb", ctypes.c_size_t * MAX_DIMS),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * (MAX_OP_PARAMS // 4)),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Tensor) * MAX_SRC),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * MAX_NAME),
]


def at(address: int) -> Tensor:
    return Tensor.from_address(address)


@functools.cache
def op_name(op: int) -> str:
    """MUL_MAT, MUL_MAT_ID, ..."""
    name: bytes = capi.ggml("ggml_op_name", ctypes.c_char_p, ctypes.c_int)(op)
    return name.decode()


def weight_name(tensor: Tensor) -> str:
    """The weight's name in the file: on some backends it is a copy, named CUDA0#blk.0.attn_k.weight#0."""
    name: str = tensor.name.decode("utf-8", "replace")
    return name.split("#")[1] if "#" in name else name


def read(tensor: Tensor) -> memoryview:
    """The tensor's bytes, from whichever device they are on."""
    n_bytes = capi.ggml("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)(ctypes.addressof(tensor))
    get = capi.ggml(
        "ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    )
    raw = ctypes.create_string_buffer(n_bytes)
    get(ctypes.addressof(tensor), raw, 0, n_bytes)
    return memoryview(raw)
