"""Quantization types as file names spell them, and the files of a folder or repo grouped into models.

Pure: works on names and sizes only.
"""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

# Types of llama.cpp, plus the sizes L, XL and XXL that publishers added by keeping some tensors larger.
_TYPE = re.compile(
    r"(?<![a-z0-9])"
    r"(?:bf16|fp?(?:16|32|64)|mxfp[48](?:_moe)?|nvfp4|tq[12]_0"
    r"|iq[1-4]_(?:xxs|xs|s|m|nl)|q[2-8]_(?:0_[48]_[48]|0_x?l|[01]|k(?:_(?:xs|s|m|l|xl|xxl))?))"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"(?<![a-z0-9])(ud|i1)[-._]$", re.IGNORECASE)
_SPLIT = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_NEVER = {"mmproj", "imatrix"}
_SIDE = {"mtp", "draft", "drafter", "lora", "adapter", "eagle", "eagle3", "dflash"}
FULL_PRECISION = {"BF16", "F16", "F32", "F64"}


class Quant(NamedTuple):
    """`prefix` is UD (dynamic) or i1 (with importance matrix), as some publishers mark theirs; mostly ""."""

    type: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.prefix}-{self.type}" if self.prefix else self.type


class NamedFile(NamedTuple):
    """`name` is a path with forward slashes."""

    name: str
    size_bytes: int | None = None


class ModelFiles(NamedTuple):
    """One model: its files in part order, and the names of parts that are not there."""

    files: tuple[NamedFile, ...]
    quant: Quant | None = None
    missing: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)

    @property
    def label(self) -> str:
        return str(self.quant) if self.quant else PurePosixPath(self.files[0].name).name


def parse_quant(name: str) -> Quant | None:
    """The type that a file name (or what a user typed) names: the last one in it, else that of its folder."""
    split = _SPLIT.fullmatch(name)
    stem = split["stem"] if split else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)
    folder, _, base = stem.rpartition("/")
    found = list(_TYPE.finditer(base))
    if not found:
        return parse_quant(folder) if folder else None
    types = [re.sub("^FP", "F", match[0].upper()) for match in found]
    # `m.f16.q6_k` and `m-Q4_K_M-fp16` are quantized, with some tensors kept.
    last = max(range(len(types)), key=lambda n: (types[n] not in FULL_PRECISION, n))
    prefix = _PREFIX.search(base[: found[last].start()])
    return Quant(types[last], {"UD": "UD", "I1": "i1"}[prefix[1].upper()] if prefix else "")


def split_parts(name: str) -> list[str] | None:
    """The names of all parts of the split model that `name` is a part of; None for another file."""
    split = _SPLIT.fullmatch(name)
    if not split or not 1 <= int(split["part"]) <= int(split["count"]):
        return None
    ending = name[-5:]
    return [f"{split['stem']}-{part:05}-of-{split['count']}{ending}" for part in range(1, int(split["count"]) + 1)]


def group_models(files: Iterable[NamedFile], repo: str = "") -> list[ModelFiles]:
    """The models among `files`: GGUF only, split parts together, and without what goes beside a model.

    A repo of drafts, adapters or the like has them in its name: its files are then what was asked for.
    """
    here = {file.name: file for file in files if is_model_name(file.name, repo)}
    models: dict[str, ModelFiles] = {}
    for name in sorted(here):
        names = split_parts(name) or [name]
        if names[0] not in models:
            parts = tuple(here[part] for part in names if part in here)
            missing = tuple(part for part in names if part not in here)
            models[names[0]] = ModelFiles(parts, parse_quant(name), missing)
    return list(models.values())


def is_model_name(name: str, repo: str = "") -> bool:
    """False for projectors, importance matrices, drafts, adapters, and what is no GGUF."""
    if not name.lower().endswith(".gguf"):
        return False
    words = set(re.split(r"[-._ /]", name.lower()))
    return not words & _NEVER and not (words & _SIDE) - set(re.split(r"[-._ /]", repo.lower()))
