"""Checks what a header says before llama.cpp sees the file, since on some of it llama.cpp aborts the process.

Mirrors the assertions that file contents reach (src/llama-model.cpp, llama-vocab.cpp, models/*.cpp). What the
library refuses cleanly by itself (a missing tensor, a shape, an unknown architecture) is left to it.
"""

import math
import re

from llmrun.errors import ModelFileError
from llmrun.gguf.check_heads import MAX_WIDTH, check_heads
from llmrun.gguf.check_tensors import check_tensors
from llmrun.gguf.check_tokens import check_tokens
from llmrun.gguf.header import Header
from llmrun.gguf.keys import MAX_LAYERS, Keys
from llmrun.gguf.kind import refuse_non_model, split
from llmrun.gguf.values import NumberArray, shown

_MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
_MAX_CONTEXT = 1 << 30
_MAX_WINDOW = 1 << 24
_MAX_POOLING = 4  # LLAMA_POOLING_TYPE_RANK
_EPSILONS = ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon")


def check_model(header: Header, *other_parts: Header) -> None:
    """Raises ModelFileError where llama.cpp could not be given the file. `other_parts`: of a split model."""
    refuse_non_model(header)
    for part in (header, *other_parts):
        check_complete(part)
        split(part)
    keys = Keys(header)
    _check_arch(keys)
    n_layer = _check_layers(keys)
    _check_sizes(keys, n_layer)
    check_heads(keys, n_layer)
    _check_experts(keys, n_layer)
    _check_numbers(keys)
    check_tokens(keys)
    check_tensors(keys, [tensor for part in (header, *other_parts) for tensor in part.tensors])


def check_complete(header: Header) -> None:
    """Raises ModelFileError for a file that is shorter than its own tensor table says."""
    if not header.complete:
        raise ModelFileError(
            f"{header.name} is incomplete: expected {header.expected_size} bytes by its own header, "
            f"has {header.file_size}",
            "the download broke off: fetch it again",
        )


def _check_arch(keys: Keys) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", keys.arch):
        keys.refuse("general.architecture", f"is {shown(keys.header.metadata.get('general.architecture'))}")


def _required(keys: Keys, key: str, least: int, most: int) -> int:
    value = keys.integer(keys.own(key))
    if value is None:
        keys.refuse(keys.own(key), "is missing")
    if not least <= value <= most:
        keys.refuse(keys.own(key), f"is {value}; llama.cpp takes {least} to {most}")
    return value


def _check_layers(keys: Keys) -> int:
    n_layer = _required(keys, "block_count", 1, MAX_LAYERS)
    if (keys.integer(keys.own("nextn_predict_layers")) or 0) > n_layer:
        keys.refuse(keys.own("nextn_predict_layers"), f"is more than the {n_layer} blocks there are")
    return n_layer


def _check_sizes(keys: Keys, n_layer: int) -> None:
    _required(keys, "context_length", 1, _MAX_CONTEXT)
    n_embd = _required(keys, "embedding_length", 1, MAX_WIDTH)
    for size in keys.per_layer(keys.own("feed_forward_length"), n_layer) or ():
        if size > MAX_WIDTH:
            keys.refuse(keys.own("feed_forward_length"), f"is {size}; no model has more than {MAX_WIDTH}")
    window = keys.integer(keys.own("attention.sliding_window")) or 0
    if window > _MAX_WINDOW:  # llama.cpp reserves memory for it at each step
        keys.refuse(keys.own("attention.sliding_window"), f"is {window}; no model has over {_MAX_WINDOW}")
    pooling = keys.integer(keys.own("pooling_type")) or 0
    if pooling > _MAX_POOLING:
        keys.refuse(keys.own("pooling_type"), f"is {pooling}; llama.cpp knows 0 to {_MAX_POOLING}")
    # Without a projection of its own (dense_2), llama.cpp copies that many numbers out of n_embd.
    n_out = keys.integer(keys.own("embedding_length_out")) or 0
    projected = any(tensor.name.startswith("dense_2") for tensor in keys.header.tensors)
    if n_out > n_embd and not projected and keys.arch != "deepseek4":
        keys.refuse(keys.own("embedding_length_out"), f"is {n_out}, of {n_embd}")


def _check_experts(keys: Keys, n_layer: int) -> None:
    n_expert = keys.integer(keys.own("expert_count")) or 0
    n_used = max(keys.per_layer(keys.own("expert_used_count"), n_layer) or (0,))
    if n_expert > _MAX_EXPERTS:
        keys.refuse(keys.own("expert_count"), f"is {n_expert}; llama.cpp takes up to {_MAX_EXPERTS}")
    if n_used > n_expert or (n_expert and not n_used):
        keys.refuse(keys.own("expert_used_count"), f"is {n_used}, of {n_expert} experts")
    n_groups = keys.integer(keys.own("expert_group_count")) or 0
    n_groups_used = keys.integer(keys.own("expert_group_used_count")) or 0
    if n_groups and (n_groups >= n_expert or n_expert % n_groups):
        keys.refuse(keys.own("expert_group_count"), f"is {n_groups}, which does not divide {n_expert} experts")
    if n_groups > 1 and not 0 < n_groups_used < n_groups:
        keys.refuse(keys.own("expert_group_used_count"), f"is {n_groups_used}, of {n_groups} groups")


def _check_numbers(keys: Keys) -> None:
    """Not-a-number spreads to every answer; an epsilon of 0 or less makes it, or aborts."""
    prefix = keys.own("")
    for key, value in keys.header.metadata.items():
        if not key.startswith(prefix):
            continue
        if isinstance(value, float) and math.isnan(value):
            keys.refuse(key, "is not a number (NaN)")
        if isinstance(value, NumberArray) and any(number != number for number in value):
            keys.refuse(key, "holds what is not a number (NaN)")
    for name in _EPSILONS:
        epsilon = keys.number(keys.own(f"attention.{name}"))
        if epsilon is not None and not 0 < epsilon < 1:
            keys.refuse(keys.own(f"attention.{name}"), f"is {epsilon:g}, not between 0 and 1")
