"""Damaged variants of the tiny models, one for each seed, and what becomes of them in llama.cpp."""

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from llmrun.gguf.header import open_header
from llmrun.gguf.types import TENSOR_TYPES
from tests.tiny import retype, tiny_gguf

BASES: tuple[dict[str, Any], ...] = (
    {},
    {"n_expert": 4},
    {"arch": "qwen2"},
    {"arch": "qwen3", "tied": True},
    {"arch": "gemma2"},
    {"arch": "gemma3", "n_layer": 6},
    {"arch": "bert"},
    {"qtype": "Q4_0"},
)
NUMBERS = (0, 1, 2, 3, 7, 255, 256, 257, 513, 65536, 2**20, 2**31 - 1, 2**31, 2**32 - 1)
FLOATS = (0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "x", "llama", "gpt2", "bert", "linear", "\0", "a" * 5000, "\x1b[31m")
TYPES = tuple(t for t in gguf.GGUFValueType if t.name != "ARRAY")
DTYPES = (np.float16, np.float64, np.int8, np.int16, np.int32, np.int64)
HANG_S = 60


@dataclass(frozen=True)
class Outcome:
    """`end` is ok, refused, failed, aborted (one error line, status 1), hang, or `signal N`."""

    path: Path
    end: str
    detail: str


def mutate(seed: int, folder: Path) -> Path:
    """Write the damaged model of this seed."""
    rng = random.Random(seed)
    base = dict(rng.choice(BASES), seed=1)
    path = folder / f"{seed:05d}-{base.get('arch', 'llama')}.gguf"
    how = rng.choice((_flip_bytes, _change_keys, _change_keys, _change_tensors, _change_type, _cut))
    with np.errstate(all="ignore"):  # values beyond a type's range are what is wanted
        how(rng, path, base)
    return path


def _flip_bytes(rng: random.Random, path: Path, base: dict[str, Any]) -> None:
    tiny_gguf(path, **base)
    end = open_header(path).data_offset
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        data[rng.randrange(end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    path.write_bytes(data)


def _cut(rng: random.Random, path: Path, base: dict[str, Any]) -> None:
    tiny_gguf(path, **base)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    path.write_bytes(rng.choice((data[:at], data + data[at:], data[:at] + bytes(len(data) - at))))


def _change_keys(rng: random.Random, path: Path, base: dict[str, Any]) -> None:
    keys = _keys(path, base)
    changed = {}
    for key in rng.sample(sorted(keys), rng.choice((1, 1, 2, 3))):
        if key != "general.architecture":
            changed[key] = _other_value(rng, keys[key])
    tiny_gguf(path, metadata=changed, **base)


def _keys(path: Path, base: dict[str, Any]) -> dict[str, Any]:
    header = open_header(tiny_gguf(path, **base))
    arch = header.metadata["general.architecture"]
    rare = ("rope.scaling.type", "rope.scaling.factor", "attention.key_length", "attention.value_length",
            "expert_count", "expert_used_count", "expert_group_count", "nextn_predict_layers", "pooling_type",
            "attention.sliding_window", "attention.sliding_window_pattern", "rope.dimension_count",
            "embedding_length_out", "attention.causal", "attention.max_alibi_bias", "attention.clamp_kqv",
            "full_attention_interval", "rope.dimension_sections")  # fmt: skip
    return {**{f"{arch}.{key}": 1 for key in rare}, **header.metadata}


def _other_value(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.1:
        return None
    if rng.random() < 0.15:
        return _of_other_type(rng)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(NUMBERS)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str):
        return rng.choice(TEXTS)
    items = list(value)
    at = rng.randrange(len(items))
    other = rng.choice(TEXTS) if isinstance(items[0], str) else rng.choice((-1, 0, 3, 6, 2**31 - 1))
    return rng.choice((items[:at] or items[:1], items + items, [items[at]] * len(items), items[::-1],
                       [*items[:at], other, *items[at + 1 :]], [other] * len(items)))  # fmt: skip


def _of_other_type(rng: random.Random) -> Any:
    type = rng.choice(TYPES)
    if type.name == "STRING":
        return rng.choice(TEXTS)
    if rng.random() < 0.2:
        return [rng.randrange(4) for _ in range(rng.choice((1, 2, 3, 300)))]
    return (1.0 if "FLOAT" in type.name else 1, type)


def _change_tensors(rng: random.Random, path: Path, base: dict[str, Any]) -> None:
    names = [tensor.name for tensor in open_header(tiny_gguf(path, **base)).tensors]
    chosen, how = set(rng.sample(names, rng.choice((1, 1, 3)))), rng.randrange(4)

    def change(name: str, array: "np.ndarray[Any, Any]") -> Any:
        return _other_tensor(rng, array, how) if name in chosen else array

    tiny_gguf(path, tensors=change, **base)


def _change_type(rng: random.Random, path: Path, base: dict[str, Any]) -> None:
    tiny_gguf(path, **{**base, "qtype": "F32"})
    tensor = rng.choice(open_header(path).tensors)
    type = rng.choice([t for t in TENSOR_TYPES.values() if tensor.shape[0] % t.block_size == 0])
    n_bytes = tensor.n_elements // type.block_size * type.block_bytes
    if n_bytes <= tensor.n_bytes:
        retype(path, tensor.name, type.id, n_bytes)


def _other_tensor(rng: random.Random, array: "np.ndarray[Any, Any]", how: int) -> Any:
    if how == 0:
        return None
    if how == 1:
        return array.astype(rng.choice(DTYPES))
    if how == 2:
        return rng.choice((array.T, array[:1], array.reshape(-1), array[..., :32], np.concatenate((array, array))))
    return np.full_like(array, rng.choice(FLOATS))


def load_all(paths: Sequence[Path], *, checked: bool = True) -> list[Outcome]:
    """Give each file to the loader program (tests/load_model.py); it starts again after one that ended it."""
    left, outcomes = list(paths), []
    while left:
        found, code, errors = _load(left, checked)
        outcomes += found
        left = left[len(found) :]
        if left and code != 0:
            outcomes.append(_ended(left.pop(0), code, errors))
    return outcomes


def _load(paths: Sequence[Path], checked: bool) -> tuple[list[Outcome], int | None, str]:
    """The results up to the end of the process, its status (None: killed for hanging), and its last words."""
    command = [sys.executable, "-m", "tests.load_model", *([] if checked else ["--unchecked"])]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate("".join(f"{path}\n" for path in paths), timeout=HANG_S)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        code = None
    lines = output.splitlines()
    results = [line for line in lines if line.startswith(("ok ", "refused ", "failed "))]
    found = [Outcome(path, *line.split(" ", 1)) for path, line in zip(paths, results, strict=False)]
    return found, code, "\n".join(lines[-3:])


def _ended(path: Path, code: int | None, words: str) -> Outcome:
    if code is None:
        return Outcome(path, "hang", words)
    if code < 0:
        return Outcome(path, f"signal {-code}", words)
    return Outcome(path, "aborted" if code == 1 and "error: " in words else f"status {code}", words)
