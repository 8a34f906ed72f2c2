"""A conversion before any weight is read: what the file will hold, or why there can be none."""

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf

from llmrun.convert.checkpoint import Checkpoint, open_checkpoint
from llmrun.convert.config import architecture_name, read_config
from llmrun.convert.encode import OUTTYPES, Output, file_type, wanted_type
from llmrun.convert.files import shown
from llmrun.convert.metadata import count_parameters, find_metadata
from llmrun.convert.model import Model
from llmrun.convert.registry import find_model
from llmrun.convert.vocab.tokenizer import VocabularyWish
from llmrun.convert.weight import stored
from llmrun.errors import ConvertError, NotFoundError, UsageError
from llmrun.models.checkpoint import is_beside_weights

_HEADER_SLACK = 1 << 20

# gguf warns of every key that is written twice, which here is how an architecture overrules a general rule.
logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Preflight:
    """What will be written, known from headers and small files alone."""

    source: str
    path: Path
    architecture: str
    arch: str
    name: str
    type: str
    file_type: int
    tokenizer: str
    pre: str
    n_vocab: int
    n_shards: int
    n_tensors: int
    n_params: int
    stored_types: dict[str, int]
    size_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A preflight and what it takes to carry it out."""

    preflight: Preflight
    kv: gguf.GGUFWriter
    outputs: Sequence[Output]


def make_plan(
    folder: Path, out: Path | None, *, type: str = "auto", pre: str | None = None, name: str | None = None,
    force: bool = False,
) -> Plan:  # fmt: skip
    """Checks everything but the numbers. `out` may be a file, a folder to put a file in, or None (beside the
    checkpoint); `name` is org/repository where the folder's own name says nothing.

    Raises ConvertError, NotFoundError or UsageError; nothing has been written then.
    """
    if type not in OUTTYPES:
        raise UsageError(f"--type {type} is none of {', '.join(OUTTYPES)}", "q8_0 and larger; quantize to go lower")
    folder = checked_folder(folder)
    values = read_config(folder)
    hf_name = architecture_name(values)
    model_class = find_model(hf_name)
    _refuse_quantized(values)
    model = model_class(folder, values, hf_name)
    checkpoint = open_checkpoint(folder)
    named = (stored(t) for key, t in checkpoint.tensors.items() if model.source_name(key) is not None)
    wanted = wanted_type(type, named)
    kv = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[model.arch])
    outputs = model.outputs(checkpoint, kv, wanted)
    notes = [*checkpoint.notes, *_fallback_note(outputs, wanted)]
    wish = VocabularyWish(_embedding_rows(model, outputs, notes), pre, notes)
    metadata = find_metadata(folder, name or folder.name, values.get("_name_or_path"), outputs, notes)
    kv.add_type(gguf.GGUFType.MODEL)
    metadata.set_gguf_meta_model(kv)
    model.add_parameters(kv, wanted)
    kv.add_quantization_version(gguf.GGML_QUANT_VERSION)
    model.add_vocabulary(kv, wish)
    notes += model.notes
    path = _output_path(folder, out, metadata, file_type(wanted), force)
    found = _describe(folder, path, hf_name, model, checkpoint, kv, outputs, notes, str(metadata.name))
    _check_space(found)
    return Plan(found, kv, outputs)


def checked_folder(folder: Path) -> Path:
    """The checkpoint's folder, absolute. Raises NotFoundError or ConvertError."""
    if folder.is_file() and folder.suffix == ".safetensors":
        folder = folder.parent
    if not folder.exists():
        raise NotFoundError(f"{folder} does not exist", "give a checkpoint's folder, or its repository as org/name")
    if not folder.is_dir():
        raise ConvertError(f"{folder} is no folder", "give the folder that holds config.json and *.safetensors")
    folder = folder.absolute()
    return folder.resolve() if ".." in folder.parts else folder


def _refuse_quantized(values: dict[str, object]) -> None:
    quantization = values.get("quantization_config")
    if isinstance(quantization, dict) and quantization:
        method = shown(str(quantization.get("quant_method", "an unnamed method")))
        raise ConvertError(
            f"the checkpoint's weights are quantized already ({method})",
            "take the model's unquantized checkpoint, or give --converter PATH",
        )


def _fallback_note(outputs: Sequence[Output], wanted: gguf.GGMLQuantizationType) -> list[str]:
    short = [output.name for output in outputs if output.type not in (wanted, gguf.GGMLQuantizationType.F32)]
    if not short:
        return []
    more = f" and {len(short) - 1} more" if len(short) > 1 else ""
    return [f"{short[0]}{more}: F16 instead of {wanted.name}, whose blocks their rows do not fill"]


def _embedding_rows(model: Model, outputs: Sequence[Output], notes: list[str]) -> int:
    """The rows of the token embedding, which is what llama.cpp compares the vocabulary with."""
    name = f"{gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.TOKEN_EMBD]}.weight"
    embedding = next((output.weight for output in outputs if output.name == name), None)
    if embedding is None or len(embedding.shape) != 2:
        raise ConvertError("the checkpoint has no token embedding", "fetch it again: it is incomplete")
    declared, rows = model.config.optional_integer("vocab_size"), embedding.shape[0]
    if declared is not None and declared != rows:
        notes.append(f"config.json says {declared} tokens, the embedding has {rows} rows: {rows} are written")
        model.config.values["vocab_size"] = rows
    return rows


def _output_path(
    folder: Path, out: Path | None, metadata: gguf.Metadata, type: gguf.LlamaFileType, force: bool
) -> Path:
    encoding = type.name.partition("_")[2]
    out = folder if out is None else out
    if out.is_dir():
        stem = gguf.naming_convention(
            metadata.name, metadata.basename, metadata.finetune, metadata.version, metadata.size_label, encoding
        )
        stem = "".join("_" if char in '/\\:*?"<>|' or not char.isprintable() else char for char in stem)
        out = out / f"{stem[:200]}.gguf"
    if out.parent.resolve() == folder.resolve() and (is_beside_weights(out.name) or out.suffix == ".safetensors"):
        raise UsageError(f"{out.name} is a part of the checkpoint", "name another output file")
    return checked_output(out, force)


def checked_output(out: Path, force: bool) -> Path:
    """The output file, which may be written. Raises ConvertError."""
    if out.exists() and not out.is_file():
        raise ConvertError(f"{out} is not an ordinary file", "name another output file")
    if out.exists() and not force:
        raise ConvertError(f"{out} is there already", "give --force to replace it, or name another output file")
    if not out.parent.is_dir():
        raise ConvertError(f"{out.parent} is no folder", "make it first, or name another output file")
    return out


def _describe(
    folder: Path, path: Path, hf_name: str, model: Model, checkpoint: Checkpoint, kv: gguf.GGUFWriter,
    outputs: Sequence[Output], notes: list[str], name: str,
) -> Preflight:  # fmt: skip
    data = kv.kv_data[0]

    def text(key: str) -> str:
        return str(data[key].value) if key in data else ""

    return Preflight(
        source=str(folder),
        path=path,
        architecture=hf_name,
        arch=gguf.MODEL_ARCH_NAMES[model.arch],
        name=name,
        type=gguf.LlamaFileType(data["general.file_type"].value).name.partition("_")[2],
        file_type=int(data["general.file_type"].value),
        tokenizer=text("tokenizer.ggml.model"),
        pre=text("tokenizer.ggml.pre"),
        n_vocab=len(data["tokenizer.ggml.tokens"].value),
        n_shards=len(checkpoint.shards),
        n_tensors=len(outputs),
        n_params=count_parameters(outputs)[0],
        stored_types=dict(Counter(tensor.dtype for tensor in checkpoint.tensors.values())),
        size_bytes=sum(-output.n_bytes // 32 * -32 for output in outputs),
        notes=tuple(notes),
    )


def _check_space(found: Preflight) -> None:
    needed = found.size_bytes + _HEADER_SLACK + 32 * found.n_vocab
    free = shutil.disk_usage(found.path.parent).free
    if free < needed:
        raise ConvertError(
            f"the file takes {needed / 1e6:.0f} MB, and {found.path.parent} has {free / 1e6:.0f} MB free",
            "free some space, name another output file, or take a smaller --type",
        )
