"""Settings of a run, merged: what the user gave, else the catalogue's, else the file's own, else llmrun's."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from llmrun.engine.context import FLASH_ATTENTION, KV_TYPES
from llmrun.engine.params import SamplingParams, draw_seed
from llmrun.errors import UsageError

AUTO_ANSWER = 4096  # tokens of room that `-c auto` leaves for an answer without -n
CTX_STEP = 256  # llama.cpp pads the KV cache to this
# general.sampling.* of a GGUF file, where its name is not the setting's own
FILE_NAMES = {"penalty_repeat": "repeat_penalty", "penalty_last_n": "repeat_last_n", "temperature": "temp"}


def merge_sampling(
    given: Mapping[str, Any], catalogue: Mapping[str, Any], file: Mapping[str, Any], **fixed: Any
) -> SamplingParams:
    """Keys are field names (`top_k`) or flag names (`top-k`); None and absent values are not given."""
    names = {field.name for field in fields(SamplingParams)}
    values: dict[str, Any] = {}
    numbers = {key: value for key, value in file.items() if isinstance(value, int | float)}
    for source in (numbers, catalogue, given):
        for key, value in source.items():
            name = FILE_NAMES.get(key, key.replace("-", "_"))
            if name in names and value is not None:
                values[name] = value
    seed = values.get("seed")
    if seed is None or seed == -1:
        values["seed"] = draw_seed()
    return replace(SamplingParams(**values), **fixed)


@dataclass(frozen=True)
class ContextWish:
    """What the user asked of the context; None where llmrun chooses."""

    n_ctx: int | None = None
    n_threads: int | None = None
    n_batch: int = 512
    n_ubatch: int = 512
    flash_attn: str = "auto"
    kv_type: tuple[str, str] = ("f16", "f16")


def auto_n_ctx(n_prompt: int, max_tokens: int | None, n_ctx_train: int) -> int:
    """Room for the prompt and the answer, rounded up to 256, within what the model was trained for."""
    wanted = n_prompt + (AUTO_ANSWER if max_tokens is None else max_tokens)
    wanted = -(-(wanted + 1) // CTX_STEP) * CTX_STEP
    return min(wanted, n_ctx_train) if n_ctx_train > 0 else wanted


def parse_kv_type(text: str) -> tuple[str, str]:
    """`q8_0` for both halves or `f16,q8_0` for K and V. Raises UsageError."""
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in KV_TYPES:
            raise UsageError(f"--kv-type has no '{name}'", f"it takes {', '.join(KV_TYPES)}")
    if len(names) > 2:
        raise UsageError(f"--kv-type {text} names more than K and V")
    return names[0], names[-1]


def check_flash_attn(text: str) -> str:
    if text.lower() not in FLASH_ATTENTION:
        raise UsageError(f"--flash-attn {text} is none of {', '.join(FLASH_ATTENTION)}")
    return text.lower()
