"""The weights of a checkpoint folder: which shards there are, whether they are whole, where each tensor lies.

Reads headers only, with plain reads: mapped pages would count as this process's memory. Knows no architecture.
Format: https://huggingface.co/docs/safetensors
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from llmrun.convert.files import read_object, shown
from llmrun.errors import ConvertError

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
INDEX = "model.safetensors.index.json"

_MAX_HEADER = 100 << 20  # safetensors' own limit
_MAX_DIMS = 8
_LFS = b"version https://git-lfs"
_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a shard. `shape` is in the checkpoint's order (rows first)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """`tensors` are by shard in sorted file order, by name within a shard: the order of the converted file."""

    folder: Path
    shards: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    notes: tuple[str, ...]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Reads every shard's header. Raises ConvertError naming each shard that is missing or damaged."""
    weight_map = _weight_map(folder)
    names = sorted(set(weight_map.values())) if weight_map else _shard_names(folder)
    tensors: dict[str, StoredTensor] = {}
    faults = []
    for name in names:
        try:
            found = _read_shard(folder / name)
        except _ShardFault as fault:
            n = sum(shard == name for shard in weight_map.values()) or fault.n_tensors
            faults.append(f"{shown(name)} {fault}" + (f" ({n} tensors affected)" if n else ""))
            continue
        if twice := next((key for key in found if key in tensors), None):
            raise ConvertError(f"tensor {shown(twice)} is in two shards", "fetch the checkpoint again")
        tensors.update(found)
    if faults:
        raise ConvertError("; ".join(faults), _fetch_hint(faults))
    notes = _compare_index(weight_map, tensors) if weight_map else []
    if not tensors:
        raise ConvertError(f"the checkpoint in {folder} holds no tensors", "fetch it again")
    return Checkpoint(folder, tuple(folder / name for name in names), tensors, tuple(notes))


class _ShardFault(Exception):
    def __init__(self, what: str, n_tensors: int = 0) -> None:
        super().__init__(what)
        self.n_tensors = n_tensors


def _weight_map(folder: Path) -> dict[str, str]:
    path = folder / INDEX
    if not path.is_file():
        return {}
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConvertError(f"{INDEX} has no weight_map", "fetch the checkpoint again")
    for shard in weight_map.values():
        # A path here could name any file of this machine.
        if not isinstance(shard, str) or not shard or shard != re.split(r"[/\\]", shard)[-1]:
            raise ConvertError(f"{INDEX} names a shard {shown(str(shard))!r}", "fetch the checkpoint again")
    return weight_map


def _shard_names(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.glob("model*.safetensors") if path.is_file())
    if not names:
        raise _no_weights(folder)
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            stem, total = match[1], int(match[3])
            every = [f"{stem}-{i + 1:05}-of-{total:05}.safetensors" for i in range(min(total, 10_000))]
            # Without an index only the numbering tells that a shard is missing.
            names += [other for other in every if other not in names]
    return sorted(names)


def _no_weights(folder: Path) -> ConvertError:
    """What a folder without model*.safetensors is taken for."""
    pickled = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for suffix in ("*.pt", "*.pth", "*.ckpt") for path in folder.glob(suffix)
    )
    if (folder / "adapter_config.json").is_file() or (folder / "adapter_model.safetensors").is_file():
        return ConvertError(
            f"{folder} holds a LoRA adapter, not a model",
            "merge it into its base model first (peft: merge_and_unload), then convert the merged folder",
        )
    if (folder / "consolidated.safetensors").is_file():
        return ConvertError(
            f"{folder} holds Mistral's own format (consolidated.safetensors)",
            "take the Hugging Face form of the model (model*.safetensors), or give --converter PATH",
        )
    if pickled:
        return ConvertError(
            f"{folder} holds only pickled weights ({shown(pickled[0])}): opening a pickle runs the code inside it",
            "take a revision of the model with *.safetensors, or convert them yourself where you trust the file: "
            "huggingface.co/spaces/safetensors/convert",
        )
    if any(folder.glob("*.gguf")):
        return ConvertError(f"{folder} holds a GGUF already", "run it as it is: llmrun run FOLDER")
    return ConvertError(
        f"{folder} holds no weights: looked for {INDEX} and model*.safetensors",
        "give the folder of a Hugging Face checkpoint, or its repository as org/name",
    )


def _read_shard(path: Path) -> dict[str, StoredTensor]:
    if not path.is_file():
        raise _ShardFault("is missing")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if head[:8] == _LFS[:8]:
            raise _ShardFault("is a Git LFS pointer, not the weights")
        n = int.from_bytes(head, "little")
        if len(head) < 8 or not 2 <= n <= _MAX_HEADER:
            raise _ShardFault(f"is no safetensors file ({size} bytes)")
        if 8 + n > size:
            raise _ShardFault(f"is cut short within its header ({size} bytes)")
        raw = file.read(n)
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        found = [_stored(path, name, entry, 8 + n) for name, entry in entries.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _ShardFault("has a damaged header") from None
    _check_size(found, size, 8 + n)
    return {tensor.name: tensor for tensor in sorted(found, key=lambda tensor: tensor.name)}


def _stored(path: Path, name: str, entry: dict[str, object], data: int) -> StoredTensor:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise ValueError
    begin, end = offsets
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or len(shape) > _MAX_DIMS:
        raise ValueError
    if end - begin != prod(shape) * DTYPE_BYTES[dtype]:
        raise ValueError
    return StoredTensor(name, dtype, tuple(shape), path, data + begin, end - begin)


def _check_size(found: list[StoredTensor], size: int, data: int) -> None:
    end = max((tensor.offset + tensor.n_bytes for tensor in found), default=data)
    if end > size:
        cut = sum(tensor.offset + tensor.n_bytes > size for tensor in found)
        raise _ShardFault(f"is cut short: {size} bytes of {end}", cut)
    if end < size:
        raise _ShardFault(f"is {size - end} bytes longer than its header says")
    spans = sorted((tensor.offset, tensor.n_bytes) for tensor in found)
    at = data
    for offset, n_bytes in spans:
        if offset != at:
            raise _ShardFault("has holes or overlaps between its tensors")
        at += n_bytes


def _compare_index(weight_map: dict[str, str], tensors: Mapping[str, StoredTensor]) -> list[str]:
    if missing := [name for name in weight_map if name not in tensors]:
        raise ConvertError(
            f"{INDEX} names {len(missing)} tensors that no shard has: {shown(missing[0])}"
            + (", ..." if len(missing) > 1 else ""),
            "the index and the shards are of different revisions: fetch the checkpoint again",
        )
    if extra := [name for name in tensors if name not in weight_map]:
        return [f"{len(extra)} tensors of the shards are not in {INDEX}: {shown(extra[0])} (converted all the same)"]
    return []


def _fetch_hint(faults: list[str]) -> str:
    if any("LFS" in fault for fault in faults):
        return "fetch the weights with git lfs pull, or give the repository as org/name"
    return "fetch the checkpoint again; nothing was written"
