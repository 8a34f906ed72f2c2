"""Checkpoints for the converter's tests: the carried ones, unpacked once, and others written here by hand."""

import json
import lzma
import shutil
import struct
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt

ARCHIVES = Path(__file__).parent / "fixtures" / "convert"
FIXTURES = sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz"))
CODES = {"<f4": "F32", "<f2": "F16", "<u2": "BF16", "<f8": "F64", "|u1": "U8", "<i8": "I64", "<i4": "I32"}

Array = npt.NDArray[Any]


@cache
def fixture(name: str) -> Path:
    """The folder with a fixture's expected.json and its checkpoint. Shared: do not write to it."""
    root = Path(mkdtemp(prefix="llmrun-convert-"))
    with lzma.open(ARCHIVES / f"{name}.tar.xz") as packed, tarfile.open(fileobj=packed) as tar:
        tar.extractall(root, filter="data")
    _roots.append(root)
    return root / name


_roots: list[Path] = []


def remove_fixtures() -> None:
    for root in _roots:
        shutil.rmtree(root, ignore_errors=True)
    _roots.clear()
    fixture.cache_clear()


@cache
def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((fixture(name) / "expected.json").read_text(encoding="utf-8"))
    return found


def checkpoint(name: str) -> Path:
    """A fixture's checkpoint folder. Shared: do not write to it."""
    return fixture(name) / str(expected(name)["hf_dir"])


def copied(name: str, root: Path) -> Path:
    """A fixture's checkpoint, to be changed."""
    folder = root / str(expected(name)["hf_dir"])
    shutil.copytree(checkpoint(name), folder)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON object; None takes one out."""
    value = json.loads(path.read_text(encoding="utf-8"))
    for key, new in changes.items():
        value.pop(key, None)
        if new is not None:
            value[key] = new
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_shard(path: Path, tensors: Mapping[str, Array]) -> None:
    """A safetensors file. uint16 arrays are bf16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": CODES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(array.tobytes() for array in tensors.values()))


def read_shard(path: Path) -> dict[str, Array]:
    """Every tensor of a safetensors file, bf16 as uint16."""
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    types = {name: code for code, name in CODES.items()}
    found = {}
    for name, entry in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = np.frombuffer(data[8 + n + begin : 8 + n + end], types[entry["dtype"]]).reshape(
                entry["shape"]
            )
    return found


def edit_weights(folder: Path, change: Mapping[str, Array | None]) -> None:
    """Replaces, adds or (None) removes tensors of a checkpoint with one shard."""
    path = folder / "model.safetensors"
    tensors: dict[str, Array | None] = {**read_shard(path), **change}
    write_shard(path, {name: array for name, array in tensors.items() if array is not None})


def bf16(values: Array) -> Array:
    """float32 as bf16, cut short."""
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
