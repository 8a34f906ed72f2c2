"""Checks a tensor table against the types that llama.cpp can compute with."""

import re
from collections.abc import Sequence

from llmrun.errors import ModelFileError
from llmrun.gguf.header import TensorInfo
from llmrun.gguf.keys import Keys
from llmrun.gguf.values import shown

_NO_WEIGHTS = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
# Tables of ids, not weights.
_ID_TABLES = ("d2t", "ffn_gate_tid2eid", "masked_embd_ordering")
# Added to activations, multiplied with them, or read as plain floats: the CPU kernels abort on all but F32.
_F32_ONLY = re.compile(
    r"\.bias$|norm|(^|\.)(token_types|ssm_a|ssm_d|ssm_conv1d\w*|shortconv\.conv|rope_freqs|rope_factors_\w+|attn_sinks"
    r"|exp_probs_b\w*|time_mix_(first|decay|lerp\w*|ln|w0|a0|v0|k_k|k_a|r_k)|channel_mix_lerp\w*|layer_output_scale)"
    r"(\.|$)"
)


def check_tensors(keys: Keys, tensors: Sequence[TensorInfo]) -> None:
    """Raises ModelFileError for a file without tensors, an empty tensor, or a type its place cannot have."""
    name = keys.header.name
    if not tensors:
        raise ModelFileError(f"{name} holds no tensors", "fetch the model itself")
    for tensor in tensors:
        if not tensor.n_bytes:
            _refuse(name, tensor, "is empty")
        type, stem = tensor.type.name, tensor.name.rpartition(".")[0]
        if type in _NO_WEIGHTS and not stem.endswith(_ID_TABLES) and not tensor.name.endswith(_ID_TABLES):
            _refuse(name, tensor, f"is of type {type}, in which llama.cpp has no weights")
        if type != "F32" and _F32_ONLY.search(tensor.name):
            _refuse(name, tensor, f"is of type {type}; llama.cpp computes with it only in F32")


def _refuse(file: str, tensor: TensorInfo, reason: str) -> None:
    raise ModelFileError(f"{file}: tensor {shown(tensor.name)[1:-1]} {reason}", "fetch another file of the model")
