"""What each layer of a model keeps per token and per sequence: attention heads, window, recurrent state.

Which layers slide and which are recurrent is partly in the metadata and partly only in llama.cpp's source, by
architecture (src/models/*.cpp); the tables here mirror it. Used for planning memory, never for computing.
"""

from typing import NamedTuple

from llmrun.gguf.keys import Keys
from llmrun.gguf.values import NumberArray


class Layer(NamedTuple):
    """One block. Key and value are cached for each token where `has_kv`: `head_dim_k * n_head_kv` and
    `head_dim_v * n_head_kv` elements (head_dim_v is 0 where only keys are cached, as in MLA)."""

    n_head: int
    n_head_kv: int
    head_dim_k: int
    head_dim_v: int
    n_ff: int
    sliding: bool
    recurrent: bool
    has_kv: bool


class RecurrentState(NamedTuple):
    """F32 elements that a recurrent layer keeps for each sequence (llama.cpp's n_embd_r, n_embd_s)."""

    conv: int
    state: int


class _Window(NamedTuple):
    """period 0: every layer slides. `full_first`: the full layer opens its group, else it closes it."""

    period: int
    full_first: bool = False
    default_size: int = 0


_WINDOWS = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, full_first=True),
    "deepseek4": _Window(0),
    "exaone-moe": _Window(4, default_size=128),
    "exaone4": _Window(4, default_size=4096),
    "gemma-embedding": _Window(6),
    "gemma2": _Window(2, default_size=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gpt-oss": _Window(2),
    "laguna": _Window(4, full_first=True),
    "lfm2": _Window(0),
    "llama4": _Window(4, default_size=8192),
    "mellum": _Window(4),
    "modern-bert": _Window(3, full_first=True),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, full_first=True),
}
# Their window comes with a pattern array in the file, without which llama.cpp refuses them.
_PATTERN_ONLY = ("dots3note", "gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35")

_RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
# Recurrent where a layer has no key/value heads.
_RECURRENT_WITHOUT_KV = (
    "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe",
    "plamo2",
)  # fmt: skip
# Recurrent but for every n-th layer: full_attention_interval, or this default.
_FULL_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_MLP_LAYERS = ("nemotron_h", "nemotron_h_moe")


def sliding_window(keys: Keys) -> int:
    """Tokens that a sliding layer looks back on, 0 where no layer slides."""
    window = _WINDOWS.get(keys.arch)
    if window is None and keys.arch not in _PATTERN_ONLY:
        return 0
    size = keys.integer(keys.own("attention.sliding_window"))
    if keys.arch == "llama4":
        return 0 if size == 0 else 8192
    if keys.arch == "smallthinker":
        return 4096 if size else 0
    if keys.arch == "exaone4" and keys.integer(keys.own("block_count")) != 64:
        return 0  # only the 32B slides, whatever the file of a smaller one says
    return (window.default_size if window else 0) if size is None else size


def _sliding(keys: Keys, n_layer: int) -> list[bool]:
    if not sliding_window(keys):
        return [False] * n_layer
    key = keys.own("attention.sliding_window_pattern")
    pattern = keys.header.metadata.get(key)
    if isinstance(pattern, NumberArray):
        flags = [bool(flag) for flag in pattern]
        return (flags + [False] * n_layer)[:n_layer]
    window = _WINDOWS.get(keys.arch, _Window(0))
    period = keys.integer(key)
    period = window.period if period is None else period
    if not period:
        return [True] * n_layer
    full_at = 0 if window.full_first else period - 1
    return [layer % period != full_at for layer in range(n_layer)]


def _recurrent_layers(keys: Keys, n_head_kv: tuple[int, ...], n_ff: tuple[int, ...]) -> list[bool]:
    n_layer = len(n_head_kv)
    if keys.arch in _RECURRENT or keys.arch == "falcon-h1":
        return [True] * n_layer
    if keys.arch in _MLP_LAYERS:
        return [kv == 0 and ff == 0 for kv, ff in zip(n_head_kv, n_ff, strict=True)]
    if keys.arch in _RECURRENT_WITHOUT_KV:
        return [kv == 0 for kv in n_head_kv]
    if keys.arch in _FULL_EVERY:
        every = keys.integer(keys.own("full_attention_interval")) or _FULL_EVERY[keys.arch]
        return [(layer + 1) % every != 0 for layer in range(n_layer)]
    return [False] * n_layer


def _n_layers_with_kv(keys: Keys, n_layer: int) -> int:
    """Gemma's later layers read the cache of earlier ones."""
    if keys.arch == "gemma3n":
        return min(20, n_layer)
    if keys.arch == "gemma4":
        return n_layer - min(n_layer, keys.integer(keys.own("attention.shared_kv_layers")) or 0)
    return n_layer


def read_layers(keys: Keys, n_layer: int, n_all: int, n_embd: int) -> tuple[Layer, ...]:
    """The first `n_layer` of `n_all` blocks; the rest are prediction heads for drafting."""

    def own(key: str) -> tuple[int, ...] | None:
        return keys.per_layer(keys.own(key), n_all)

    n_head = (own("attention.head_count") or (0,) * n_all)[:n_layer]
    n_head_kv = (own("attention.head_count_kv") or n_head)[:n_layer]
    n_ff = (own("feed_forward_length") or (0,) * n_all)[:n_layer]
    recurrent = _recurrent_layers(keys, n_head_kv, n_ff)
    sliding = [slides and not recurs for slides, recurs in zip(_sliding(keys, n_layer), recurrent, strict=True)]
    with_kv = _n_layers_with_kv(keys, n_layer)
    dims = {slides: _head_dims(keys, n_embd, n_head, slides) for slides in (False, True)}
    return tuple(
        Layer(
            n_head=n_head[i],
            n_head_kv=n_head_kv[i],
            head_dim_k=dims[sliding[i]][0],
            head_dim_v=dims[sliding[i]][1],
            n_ff=n_ff[i],
            sliding=sliding[i],
            recurrent=recurrent[i],
            has_kv=i < with_kv and n_head_kv[i] > 0 and (not recurrent[i] or keys.arch == "falcon-h1"),
        )
        for i in range(n_layer)
    )


def _head_dims(keys: Keys, n_embd: int, n_head: tuple[int, ...], sliding: bool) -> tuple[int, int]:
    default = n_embd // n_head[0] if n_head and n_head[0] else 0
    dims = []
    for key in ("attention.key_length", "attention.value_length"):
        size = keys.integer(keys.own(key))
        swa = keys.integer(keys.own(f"{key}_swa")) if sliding else None
        dims.append(swa if swa is not None else default if size is None else size)
    is_mla = bool(keys.integer(keys.own("attention.key_length_mla")))
    return dims[0], 0 if is_mla else dims[1]


def recurrent_state(keys: Keys, n_embd: int, n_head: int) -> RecurrentState:
    """After `llama_hparams::n_embd_r` and `n_embd_s` (src/llama-hparams.cpp)."""

    def own(key: str) -> int:
        return keys.integer(keys.own(key)) or 0

    if own("wkv.head_size"):
        shifts = keys.integer(keys.own("token_shift_count"))
        return RecurrentState((2 if shifts is None else shifts) * n_embd, n_embd * own("wkv.head_size"))
    if own("shortconv.l_cache"):
        return RecurrentState(n_embd * (own("shortconv.l_cache") - 1), 0)
    kernel = max(0, own("ssm.conv_kernel") - 1)
    if own("kda.head_dim"):
        size = own("kda.head_dim")
        return RecurrentState(3 * (kernel or 3) * n_head * size, size * size * n_head)
    if keys.arch == "minimax-01":
        size = own("attention.key_length") or (n_embd // n_head if n_head else 0)
        return RecurrentState(0, size * size * n_head)
    inner, n_state = own("ssm.inner_size"), own("ssm.state_size")
    return RecurrentState(kernel * (inner + 2 * own("ssm.group_count") * n_state), n_state * inner)
