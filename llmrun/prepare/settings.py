"""Settings of a run, merged: what the user gave, else the catalogue's, else the file's own, else llmrun's."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from llmrun.engine.context import FLASH_ATTENTION, KV_TYPES
from llmrun.engine.params import SamplingParams, draw_seed
from llmrun.errors import UsageError

AUTO_ANSWER = 4096  # tokens of room that `-c auto` leaves for an answer without -n
CTX_STEP = 256  # llama.cpp pads the KV cache to this
SHORT_CTX = 512  # tokens with which an answer is still worth having
TEMPLATE_TOKENS = 256  # that a chat template may add
# general.sampling.* of a GGUF file, where its name is not the setting's own
FILE_NAMES = {"penalty_repeat": "repeat_penalty", "penalty_last_n": "repeat_last_n", "temperature": "temp"}


def merge_sampling(
    given: Mapping[str, Any], catalogue: Mapping[str, Any], file: Mapping[str, Any], **fixed: Any
) -> SamplingParams:
    """Keys are field names (`top_k`) or flag names (`top-k`); None and absent values are not given."""
    values: dict[str, Any] = {}
    numbers = {key: value for key, value in file.items() if isinstance(value, int | float)}
    for source in (numbers, catalogue, given):
        for key, value in source.items():
            name = FILE_NAMES.get(key, key.replace("-", "_"))
            if name in SamplingParams._fields and value is not None:
                values[name] = value
    seed = values.get("seed")
    if seed is None or seed == -1:
        values["seed"] = draw_seed()
    return SamplingParams(**values)._replace(**fixed)


class ContextWish(NamedTuple):
    """What the user asked of the context and of memory; None where llmrun chooses. `gpu_layers` -1 is all of them;
    `rpc` are workers on other machines; `require_gpu` refuses to run with a layer on the CPU."""

    n_ctx: int | None = None
    n_threads: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    flash_attn: str = "auto"
    kv_type: tuple[str, str] | None = None
    gpu_layers: int | None = None
    devices: tuple[str, ...] | None = None
    kv_on_cpu: bool = False
    cpu_moe: bool = False
    require_gpu: bool = False
    rpc: tuple[str, ...] = ()
    rope_scaling: str = ""
    rope_scale: float = 0.0


class Room(NamedTuple):
    """Tokens of context wanted, and the least that serves; for how many sequences and logits rows at once."""

    n_ctx: int
    n_ctx_min: int
    n_seq_max: int = 1
    n_outputs: int = 1


def room_for_text(n_bytes: int, max_tokens: int | None) -> Room:
    """Room for a prompt of so many bytes, before its tokens are counted: rather too much than too little."""
    n_prompt = min(n_bytes, 4096) + max(0, n_bytes - 4096) // 2 + TEMPLATE_TOKENS
    n_ctx = auto_n_ctx(n_prompt, max_tokens, 0)
    return Room(n_ctx, min(n_ctx, SHORT_CTX))


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
