"""What a model is, from its header. Pure; feeds `show`, `list`, the JSON results and the planner."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llmrun.gguf.header import Header, TensorInfo
from llmrun.gguf.keys import MAX_LAYERS, Keys
from llmrun.gguf.layers import Layer, RecurrentState, read_layers, recurrent_state, sliding_window
from llmrun.gguf.types import FILE_TYPES

_GUESSED = 1024  # a flag of general.file_type: the type was not in the file it came from
_TEMPLATE = "tokenizer.chat_template"
_SAMPLING = "general.sampling."
_POOLING = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}


class Rope(NamedTuple):
    """Rotary position settings; `scaling` is none, linear, yarn or longrope."""

    freq_base: float
    scaling: str
    factor: float
    n_ctx_original: int
    n_dims: int


class Tokenizer(NamedTuple):
    """What the file says; None where llama.cpp's default for the tokenizer's kind holds."""

    model: str
    pre: str | None
    n_tokens: int
    bos: int | None
    eos: int | None
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None


class Weights(NamedTuple):
    """Bytes of tensor data, by where llama.cpp keeps them: input on the CPU, each layer on one device."""

    input_bytes: int
    layer_bytes: tuple[int, ...]
    expert_bytes: tuple[int, ...]
    """Of `layer_bytes`, what routed experts take."""
    output_bytes: int
    """Output norm and matrix; a tied matrix is counted here again where `tied`, since it is used as both."""
    tied: bool


class ModelInfo(NamedTuple):
    """Sizes in bytes, lengths in tokens. `layers` are those that answer, without heads for drafting."""

    name: str | None
    arch: str
    quant: str
    n_params: int
    size_bytes: int
    bits_per_weight: float
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_expert: int
    n_expert_used: int
    sliding_window: int
    layers: tuple[Layer, ...]
    recurrent: RecurrentState
    weights: Weights
    rope: Rope
    causal: bool
    pooling: str | None
    tokenizer: Tokenizer | None
    chat_template: str | None
    named_templates: Mapping[str, str]
    sampling: Mapping[str, int | float | str]
    license: str | None
    not_utf8: tuple[str, ...]


def model_info(header: Header, *other_parts: Header) -> ModelInfo:
    """Raises ModelFileError where a key has a type that cannot be read. `other_parts`: of a split model."""
    keys = Keys(header)
    tensors = [tensor for part in (header, *other_parts) for tensor in part.tensors]
    n_params = sum(tensor.n_elements for tensor in tensors)
    n_all = min(keys.integer(keys.own("block_count")) or 0, MAX_LAYERS)
    n_layer = max(0, n_all - (keys.integer(keys.own("nextn_predict_layers")) or 0))
    n_embd = keys.integer(keys.own("embedding_length")) or 0
    layers = read_layers(keys, n_layer, n_all, n_embd)
    tokenizer = _tokenizer(keys)
    pooling = keys.integer(keys.own("pooling_type"))
    causal = keys.flag(keys.own("attention.causal"))
    return ModelInfo(
        name=keys.text("general.name"),
        arch=keys.arch,
        quant=_quant(keys, tensors),
        n_params=n_params,
        size_bytes=sum(part.file_size for part in (header, *other_parts)),
        bits_per_weight=8 * sum(tensor.n_bytes for tensor in tensors) / n_params if n_params else 0.0,
        n_layer=n_layer,
        n_embd=n_embd,
        n_vocab=_n_vocab(keys, tokenizer, tensors),
        n_ctx_train=keys.integer(keys.own("context_length")) or 0,
        n_expert=keys.integer(keys.own("expert_count")) or 0,
        n_expert_used=max(keys.per_layer(keys.own("expert_used_count"), n_all) or (0,)),
        sliding_window=sliding_window(keys),
        layers=layers,
        recurrent=recurrent_state(keys, n_embd, layers[0].n_head if layers else 0),
        weights=_weights(tensors, n_layer),
        rope=_rope(keys, layers),
        causal=True if causal is None else causal,
        pooling=None if pooling is None else _POOLING.get(pooling, str(pooling)),
        tokenizer=tokenizer,
        chat_template=keys.text(_TEMPLATE),
        named_templates=_named_templates(keys),
        sampling=_sampling(header),
        license=keys.text("general.license"),
        not_utf8=header.not_utf8,
    )


def _quant(keys: Keys, tensors: Sequence[TensorInfo]) -> str:
    """The file type's name, else the tensor type that most of the bytes have."""
    file_type = keys.integer("general.file_type")
    known = FILE_TYPES.get(file_type & ~_GUESSED) if file_type is not None else None
    if known:
        return known
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type.name] += tensor.n_bytes
    return sizes.most_common(1)[0][0] if sizes else "unknown"


def _tokenizer(keys: Keys) -> Tokenizer | None:
    model = keys.text("tokenizer.ggml.model")
    if model is None:
        return None
    return Tokenizer(
        model=model,
        pre=keys.text("tokenizer.ggml.pre"),
        n_tokens=len(keys.texts("tokenizer.ggml.tokens") or ()),
        bos=keys.integer("tokenizer.ggml.bos_token_id"),
        eos=keys.integer("tokenizer.ggml.eos_token_id"),
        add_bos=keys.flag("tokenizer.ggml.add_bos_token"),
        add_eos=keys.flag("tokenizer.ggml.add_eos_token"),
        add_space_prefix=keys.flag("tokenizer.ggml.add_space_prefix"),
    )


def _n_vocab(keys: Keys, tokenizer: Tokenizer | None, tensors: Sequence[TensorInfo]) -> int:
    """What the logits of one token are: the tokens listed, else the rows of the embedding."""
    if tokenizer and tokenizer.n_tokens:
        return tokenizer.n_tokens
    rows = next((t.shape[1] for t in tensors if t.name == "token_embd.weight" and len(t.shape) == 2), 0)
    return rows or keys.integer(keys.own("vocab_size")) or 0


def _weights(tensors: Sequence[TensorInfo], n_layer: int) -> Weights:
    input_bytes = output_bytes = token_bytes = 0
    layer_bytes, expert_bytes = [0] * n_layer, [0] * n_layer
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        head, _, rest = tensor.name.partition(".")
        number = rest.partition(".")[0]
        if head == "blk" and number.isdecimal() and len(number) < 4:
            # Heads for drafting come after the layers; their weights are loaded with the last.
            layer = min(int(number), n_layer - 1)
            if layer >= 0:
                layer_bytes[layer] += tensor.n_bytes
                expert_bytes[layer] += tensor.n_bytes if "exps" in rest else 0
        elif head.startswith(("output", "cls", "dense_")):
            output_bytes += tensor.n_bytes
        else:
            input_bytes += tensor.n_bytes
            token_bytes += tensor.n_bytes if head == "token_embd" else 0
    tied = "output.weight" not in names and token_bytes > 0
    return Weights(
        input_bytes,
        tuple(layer_bytes),
        tuple(expert_bytes),
        output_bytes + (token_bytes if tied else 0),
        tied,
    )


def _rope(keys: Keys, layers: Sequence[Layer]) -> Rope:
    def own(key: str) -> float | None:
        return keys.number(keys.own(f"rope.{key}"))

    base, factor = own("freq_base"), own("scaling.factor")
    original = keys.integer(keys.own("rope.scaling.original_context_length"))
    scaling = keys.text(keys.own("rope.scaling.type"))
    n_dims = keys.integer(keys.own("rope.dimension_count"))
    return Rope(
        freq_base=10000.0 if base is None else base,
        scaling=scaling or ("linear" if factor else "none"),
        factor=factor or own("scale_linear") or 1.0,
        n_ctx_original=original or keys.integer(keys.own("context_length")) or 0,
        n_dims=(layers[0].head_dim_k if layers else 0) if n_dims is None else n_dims,
    )


def _named_templates(keys: Keys) -> dict[str, str]:
    """Templates beside the default one (`tool_use`, `rag`), by name."""
    found = {}
    for name in keys.texts(f"{_TEMPLATE}s") or ():
        text = keys.text(f"{_TEMPLATE}.{name}")
        if text is not None:
            found[name] = text
    return found


def _sampling(header: Header) -> dict[str, int | float | str]:
    """`general.sampling.*` as the model's maker set them, without the prefix. Arrays are left out."""
    return {
        key.removeprefix(_SAMPLING): value
        for key, value in header.metadata.items()
        if key.startswith(_SAMPLING) and isinstance(value, (int, float, str))
    }
