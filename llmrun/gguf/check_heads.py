"""Checks attention heads and rotary positions against what llama.cpp's graphs assert."""

from llmrun.gguf.keys import Keys
from llmrun.gguf.values import shown

MAX_WIDTH = 1 << 20  # embedding and feed-forward lengths; the largest known is 53,248
_MAX_HEADS = 1 << 14
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
# Whose graph asserts that a head's keys and values are equally long (src/models/*.cpp) ...
_EQUAL = frozenset((
    "afmoe", "bailingmoe2", "bert", "bitnet", "bloom", "chatglm", "cohere2", "command-r", "deepseek4",
    "eurobert", "gemma4", "glm4", "glm4moe", "gpt2", "gptneox", "granitehybrid", "jais", "laguna",
    "maple", "minimax-01", "minimax-m2", "minimax-m3", "modern-bert", "mpt", "muse-glimmer", "nanbeige",
    "nemotron", "nemotron_h", "nemotron_h_moe", "neo-bert", "openelm", "phi2", "phi3", "qwen", "qwen35",
    "qwen35moe", "qwen3next", "qwen4exp", "refact", "spark2_5", "stablelm", "starcoder", "t5",
))  # fmt: skip
# ... and that all of a head is rotated as well.
_ROTATED_WHOLE = frozenset((
    "apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "cohere2moe", "dbrx",
    "deci", "deepseek", "dots1", "dream", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe", "exaone4",
    "falcon", "granite", "granite_swa", "graniteswitch", "grok", "grovemoe", "hunyuan-moe", "hunyuan_vl",
    "hy_v3", "internlm2", "jais2", "llada", "llada-moe", "llama", "llama4", "maincoder", "mellum",
    "mistral3", "olmo", "olmo2", "olmoe", "orion", "paddleocr", "pangu-embedded", "plamo", "pockettts",
    "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "rnd1", "seed_oss",
    "smallthinker", "smollm3", "starcoder2", "talkie", "xverse",
))  # fmt: skip
# Hybrids whose attention may do without rotary positions.
_UNROTATED = frozenset((
    "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "nemotron_h",
    "nemotron_h_moe", "plamo2",
))  # fmt: skip


def check_heads(keys: Keys, n_layer: int) -> None:
    """Raises ModelFileError for head counts, head sizes or rotary settings that llama.cpp would abort on."""
    key, key_kv = keys.own("attention.head_count"), keys.own("attention.head_count_kv")
    n_head = keys.per_layer(key, n_layer) or (0,) * n_layer
    n_head_kv = keys.per_layer(key_kv, n_layer) or n_head
    if max(n_head) > _MAX_HEADS:
        keys.refuse(key, f"is {max(n_head)}; no model has more than {_MAX_HEADS}")
    for heads, kv in zip(n_head, n_head_kv, strict=True):
        if kv and heads and heads % kv:
            keys.refuse(key_kv, f"is {kv}, which does not divide the {heads} heads")
    scaling = keys.text(keys.own("rope.scaling.type"))
    if scaling is not None and scaling not in _ROPE_SCALINGS:
        keys.refuse(keys.own("rope.scaling.type"), f"is {shown(scaling)}, none of {', '.join(_ROPE_SCALINGS)}")
    if n_head[0]:
        _check_head_size(keys, n_head[0])


def _check_head_size(keys: Keys, n_head: int) -> None:
    default = (keys.integer(keys.own("embedding_length")) or 0) // n_head
    sizes = []
    for name in ("attention.key_length", "attention.value_length"):
        size = keys.integer(keys.own(name))
        sizes.append(default if size is None else size)
        if not 0 < sizes[-1] <= MAX_WIDTH:
            keys.refuse(keys.own(name), f"is {size}, with {n_head} heads")
    arch, (key_size, value_size) = keys.arch, sizes
    if key_size != value_size and arch in _EQUAL | _ROTATED_WHOLE:
        keys.refuse(keys.own("attention.key_length"), f"is {key_size}, and for values it is {value_size}")
    n_rot = keys.integer(keys.own("rope.dimension_count"))
    if n_rot is None or (n_rot == 0 and arch in _UNROTATED):
        return
    if n_rot == 0 or n_rot % 2 or n_rot > key_size or (n_rot != key_size and arch in _ROTATED_WHOLE):
        keys.refuse(keys.own("rope.dimension_count"), f"is {n_rot}, in heads of {key_size}")
