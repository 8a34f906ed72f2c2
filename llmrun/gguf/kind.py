"""Which kind of GGUF a file is: a model, or one of the things beside models that are taken for one."""

from dataclasses import dataclass
from enum import StrEnum

from llmrun.errors import ModelFileError
from llmrun.gguf.header import Header
from llmrun.gguf.keys import Keys
from llmrun.gguf.values import INT32, UINT16, VALUE_TYPE_NAMES, shown


class Kind(StrEnum):
    MODEL = "a model"
    PROJECTOR = "a vision projector"
    ADAPTER = "a LoRA adapter"
    CONTROL_VECTOR = "a control vector"
    IMATRIX = "an importance matrix"
    DRAFT = "a draft head"
    VOCABULARY = "a vocabulary without weights"


_HINTS = {
    Kind.PROJECTOR: "use the model file beside it, whose name has no mmproj",
    Kind.ADAPTER: "an adapter is applied to its base model: use the base model's file",
    Kind.CONTROL_VECTOR: "a control vector is applied to a model: use the model's file",
    Kind.IMATRIX: "give it to quantize with --imatrix; use the model's own file here",
    Kind.DRAFT: "it drafts for a larger model: use the larger model's file",
    Kind.VOCABULARY: "it holds a tokenizer and no tensors: fetch the model itself",
}
_DRAFT_ARCHS = ("eagle3", "dflash", "gemma4-assistant")


@dataclass(frozen=True)
class Split:
    """Which part of a split model a file is: `no` counts from 0; `n_tensors` is of all parts together."""

    no: int
    count: int
    n_tensors: int


def kind(header: Header) -> Kind:
    """What the header's `general.type`, architecture and tensors say the file is."""
    metadata = header.metadata
    arch, type = metadata.get("general.architecture"), metadata.get("general.type")
    if type == "mmproj" or arch in ("clip", "mmproj"):
        return Kind.PROJECTOR
    if type == "adapter" or "adapter.type" in metadata:
        return Kind.ADAPTER
    if arch == "controlvector":
        return Kind.CONTROL_VECTOR
    if type == "imatrix" or "imatrix.datasets" in metadata:
        return Kind.IMATRIX
    n_layer, n_draft = metadata.get(f"{arch}.block_count"), metadata.get(f"{arch}.nextn_predict_layers")
    if arch in _DRAFT_ARCHS or (n_draft is not None and n_draft == n_layer):
        return Kind.DRAFT
    if not header.tensors and "split.count" not in metadata and "tokenizer.ggml.model" in metadata:
        return Kind.VOCABULARY
    return Kind.MODEL


def refuse_non_model(header: Header) -> None:
    """Raises ModelFileError for a file that is not a model, saying what it is and what to use instead."""
    found = kind(header)
    if found is not Kind.MODEL:
        raise ModelFileError(f"{header.name} is {found}, not a language model", _HINTS[found])


def split(header: Header) -> Split | None:
    """The file's place in a split model, None for a whole one. Raises ModelFileError for wrong keys."""
    if "split.count" not in header.metadata and "split.no" not in header.metadata:
        return None
    keys = Keys(header)
    values = []
    for key, wanted in (("split.no", UINT16), ("split.count", UINT16), ("split.tensors.count", INT32)):
        value = keys.integer(key)
        # llama.cpp aborts the process where the type is another, so a fitting number is not enough.
        if value is None or header.value_types[key] != wanted:
            keys.refuse(key, f"is {shown(header.metadata.get(key))}, not of type {VALUE_TYPE_NAMES[wanted]}")
        values.append(value)
    if values[0] >= max(1, values[1]):
        keys.refuse("split.no", f"is {values[0]}, of {values[1]} parts")
    return Split(*values)
