"""What the user asks of a run's memory: what is set stays as it is, what is None is chosen by the plan."""

import math
from typing import NamedTuple

from llmrun.errors import UsageError
from llmrun.gguf.info import ModelInfo

ALL_LAYERS = -1
ROPE_SCALINGS = ("none", "linear", "yarn")


class Wish(NamedTuple):
    """Sizes in tokens. `n_ctx` is what is wanted (0: all that the model was trained for), `n_ctx_min` what is
    enough; None there: `n_ctx` and nothing less. `gpu_layers` counts the output matrix as a layer, as llama.cpp
    does. The routed experts of `cpu_expert_layers` layers at least stay on the CPU. `rope_scaling` and `rope_scale`
    are those of the command line: "" and 0.0 leave the model's own.
    """

    n_ctx: int = 0
    n_ctx_min: int | None = None
    kv_type: tuple[str, str] | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    n_seq_max: int = 1
    n_outputs: int = 1
    gpu_layers: int | None = None
    devices: tuple[str, ...] | None = None
    kv_on_cpu: bool = False
    cpu_expert_layers: int = 0
    flash_attn: str = "auto"
    rope_scaling: str = ""
    rope_scale: float = 0.0


def context_limit(info: ModelInfo, wish: Wish) -> int:
    """The longest context that the model, or the rope scaling that the user chose, allows.

    Raises UsageError for a scaling that means nothing.
    """
    if not wish.rope_scaling:
        if wish.rope_scale:
            raise UsageError("--rope-scale needs a --rope-scaling", "add --rope-scaling yarn, or linear")
        return info.n_ctx_train
    if wish.rope_scaling not in ROPE_SCALINGS:
        raise UsageError(f"there is no rope scaling {wish.rope_scaling}", "take none, linear or yarn")
    if not math.isfinite(wish.rope_scale) or not 1.0 <= wish.rope_scale <= 1e4:
        raise UsageError(
            f"--rope-scaling {wish.rope_scaling} needs a --rope-scale of 1 or more, not {wish.rope_scale:g}",
            "--rope-scale 2 doubles the context that the model was trained for",
        )
    # A model that was itself stretched was trained on less than its context says.
    stretched = info.rope.n_ctx_original < info.n_ctx_train
    first = info.rope.n_ctx_original if stretched else info.n_ctx_train / max(1.0, info.rope.factor)
    return max(info.n_ctx_train, int(first * wish.rope_scale))


def check_context(info: ModelInfo, wish: Wish) -> None:
    """Raise UsageError for a context that the model cannot attend over."""
    limit = context_limit(info, wish)
    least = wish.n_ctx if wish.n_ctx_min is None else wish.n_ctx_min
    if not limit or least <= limit:
        return
    if wish.rope_scaling:
        raise UsageError(
            f"a context of {least} tokens is more than --rope-scale {wish.rope_scale:g} gives: {limit}",
            f"--rope-scale {math.ceil(least / info.n_ctx_train * max(1.0, info.rope.factor))}, or -c {limit}",
        )
    raise UsageError(
        f"this model was trained for {limit} tokens of context; {least} are asked for",
        f"-c {limit}, or stretch it at some loss of quality: "
        f"--rope-scaling yarn --rope-scale {math.ceil(least / limit)}",
    )
