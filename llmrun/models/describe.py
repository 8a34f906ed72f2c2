"""What a model is, in full: for `show`. Pure, over headers that somebody else has read."""

from collections.abc import Mapping
from dataclasses import dataclass

from llmrun.gguf.header import Header
from llmrun.gguf.info import ModelInfo, model_info
from llmrun.gguf.kind import kind
from llmrun.gguf.values import VALUE_TYPE_NAMES, NumberArray, StringArray, Value
from llmrun.models.headers import Headers
from llmrun.models.resolve import Resolved

FIRST_VALUES = 8


@dataclass(frozen=True)
class Array:
    """A long value: what its elements are, how many, and the first few."""

    type: str
    length: int
    first: tuple[int | float | bool | str, ...]


@dataclass(frozen=True)
class TensorType:
    """All tensors stored in one type."""

    type: str
    n_tensors: int
    n_elements: int
    n_bytes: int


@dataclass(frozen=True)
class Tensor:
    """`shape` is in ggml's order: row length first."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int


@dataclass(frozen=True)
class Description:
    """`kind` is what the file is (a model, a vision projector, ...). `missing_bytes`: what a file that was cut off
    lacks by its own header. Texts are as the file has them: not safe for a terminal."""

    name: str
    source: str
    paths: tuple[str, ...]
    is_here: bool
    kind: str
    licence: str
    licence_note: str
    size_bytes: int
    missing_bytes: int
    info: ModelInfo
    tensor_types: tuple[TensorType, ...]
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, int | float | bool | str | Array]


def describe(resolved: Resolved, headers: Headers) -> Description:
    """Raises ModelFileError where a metadata key has a type that cannot be read."""
    parts = headers.parts
    info = model_info(*parts)
    return Description(
        name=resolved.name,
        source=headers.source,
        paths=tuple(str(path) for path in resolved.paths),
        is_here=headers.is_here,
        kind=kind(parts[0]).value,
        licence=resolved.licence or info.license or "",
        licence_note=resolved.licence_note,
        size_bytes=sum(part.file_size for part in parts),
        missing_bytes=sum(max(0, part.expected_size - part.file_size) for part in parts),
        info=info,
        tensor_types=_types(parts),
        tensors=tuple(
            Tensor(tensor.name, tensor.shape, tensor.type.name, tensor.n_bytes)
            for part in parts
            for tensor in part.tensors
        ),
        metadata={key: _shown(value) for key, value in parts[0].metadata.items()},
    )


def _types(parts: tuple[Header, ...]) -> tuple[TensorType, ...]:
    """Largest first."""
    found: dict[str, TensorType] = {}
    for tensor in (tensor for part in parts for tensor in part.tensors):
        name = tensor.type.name
        sum_ = found.get(name, TensorType(name, 0, 0, 0))
        found[name] = TensorType(
            name, sum_.n_tensors + 1, sum_.n_elements + tensor.n_elements, sum_.n_bytes + tensor.n_bytes
        )
    return tuple(sorted(found.values(), key=lambda row: -row.n_bytes))


def _shown(value: Value) -> int | float | bool | str | Array:
    match value:
        case NumberArray():
            return Array(VALUE_TYPE_NAMES[value.type], len(value), tuple(value[:FIRST_VALUES]))
        case StringArray():
            return Array("string", len(value), tuple(value[:FIRST_VALUES]))
    return value
