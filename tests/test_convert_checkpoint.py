"""Shards: missing, cut short, pointers, damaged headers, pickles. Each is named, and nothing is written."""

import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrun.convert.checkpoint import open_checkpoint
from llmrun.convert.pipeline import convert, preflight
from llmrun.errors import ConvertError, NotFoundError
from llmrun.report import Quiet
from tests.checkpoints import checkpoint, copied, edit_json, edit_weights, expected, read_shard, write_shard
from tests.gguf_digest import describe

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A checkpoint of three shards and an index."""
    folder = copied("mistral", tmp_path)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) >= 3
    return folder


def shard(folder: Path, n: int) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[n - 1]


def refused(folder: Path, *said: str) -> ConvertError:
    """Conversion stops before anything is written and says these words."""
    with pytest.raises(ConvertError) as caught:
        convert(folder, folder.parent / "out.gguf", report=Quiet())
    for words in said:
        assert words in caught.value.message, caught.value.message
    assert len(caught.value.message) < 600 and caught.value.hint
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return caught.value


def n_tensors(folder: Path, name: str) -> int:
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    return sum(found == name for found in weight_map.values())


def test_cvt_06_a_missing_shard_is_named_with_its_tensors(sharded: Path) -> None:
    """CVT-06."""
    lost = shard(sharded, 2).name
    n = n_tensors(sharded, lost)
    (sharded / lost).unlink()
    refused(sharded, f"{lost} is missing ({n} tensors affected)")


def test_cvt_06_a_truncated_shard_is_named_with_its_tensors(sharded: Path) -> None:
    """CVT-06."""
    cut = shard(sharded, 3)
    with cut.open("r+b") as file:
        file.truncate(cut.stat().st_size - 100)
    refused(sharded, f"{cut.name} is cut short", f"({n_tensors(sharded, cut.name)} tensors affected)")


def test_cvt_06_a_pointer_in_a_shard_s_place_is_named(sharded: Path) -> None:
    """CVT-06."""
    pointer = shard(sharded, 1)
    pointer.write_bytes(LFS)
    error = refused(sharded, f"{pointer.name} is a Git LFS pointer", "tensors affected")
    assert "git lfs pull" in error.hint


def test_cvt_06_an_index_that_names_an_unknown_tensor(sharded: Path) -> None:
    """CVT-06. The first is named, the rest counted: not a dump of all."""
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"] |= {f"model.layers.{i}.extra.weight": shard(sharded, 1).name for i in range(900)}
    (sharded / INDEX).write_text(json.dumps(index))
    refused(sharded, "names 900 tensors that no shard has: model.layers.0.extra.weight")


def test_cvt_06_shards_without_an_index_work_when_complete(sharded: Path) -> None:
    """CVT-06."""
    (sharded / INDEX).unlink()
    convert(sharded, sharded.parent / "out.gguf", type="f16", report=Quiet())
    found = describe(sharded.parent / "out.gguf")
    assert found["tensors"] == expected("mistral")["outtypes"]["f16"]["tensors"]


def test_cvt_06_shards_without_an_index_and_one_missing(sharded: Path) -> None:
    """CVT-06. Their numbers tell."""
    (sharded / INDEX).unlink()
    lost = shard(sharded, 2)
    lost.unlink()
    refused(sharded, f"{lost.name} is missing")


def test_several_bad_shards_are_all_named(sharded: Path) -> None:
    shard(sharded, 1).write_bytes(LFS)
    lost = shard(sharded, 2)
    lost.unlink()
    refused(sharded, shard(sharded, 1).name, f"{lost.name} is missing")


def test_tensors_that_the_index_forgets_are_converted_with_a_note(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    (sharded / INDEX).write_text(json.dumps(index))
    report = Quiet()
    convert(sharded, sharded.parent / "out.gguf", report=report)
    assert len(report.notes) == 1 and "model.norm.weight" in report.notes[0]


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a\\b.safetensors", ""])
def test_an_index_cannot_name_files_elsewhere(name: str, sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (sharded / INDEX).write_text(json.dumps(index))
    refused(sharded, "names a shard")


class Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod if hasattr(os, "mknod") else open, (str(self.path),)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "weights.ckpt"]
)
def test_cvt_08_pickled_weights_are_refused_and_never_opened(name: str, tmp_path: Path) -> None:
    """CVT-08."""
    folder = copied("llama_spm", tmp_path)
    (folder / "model.safetensors").unlink()
    pwned = tmp_path.parent / f"{tmp_path.name}-pwned"
    (folder / name).write_bytes(pickle.dumps(Touch(pwned)))
    error = refused(folder, "pickled", "runs the code inside it")
    assert "safetensors" in error.hint
    assert not pwned.exists()
    pickle.loads((folder / name).read_bytes())  # the trap works
    assert pwned.exists()


def test_a_folder_of_something_else_says_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(checkpoint("llama_spm") / "config.json", folder)
    refused(folder, "no weights", "model*.safetensors")
    (folder / "model.gguf").write_bytes(b"GGUF")
    refused(folder, "a GGUF already")
    (folder / "consolidated.safetensors").write_bytes(b"x")
    refused(folder, "Mistral's own format")
    (folder / "adapter_config.json").write_text("{}")
    refused(folder, "LoRA adapter")


def test_a_source_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        preflight(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConvertError, match="is no folder"):
        preflight(tmp_path / "file")
    with pytest.raises(ConvertError, match=r"config\.json is missing"):
        preflight(tmp_path)


def damaged(header: object, body: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\0" * 64,
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 1 << 20) + b"{}",
        damaged(b"[1,2]" * 3),
        damaged(b"{" * 5000),
        damaged({"a": 1}),
        damaged({"a": {**ONE, "dtype": "F99"}}, bytes(8)),
        damaged({"a": {**ONE, "shape": [-2]}}, bytes(8)),
        damaged({"a": {**ONE, "shape": [1 << 70]}}, bytes(8)),
        damaged({"a": {**ONE, "shape": [True]}}, bytes(8)),
        damaged({"a": {**ONE, "shape": [3]}}, bytes(8)),
        damaged({"a": {**ONE, "data_offsets": [8, 0]}}, bytes(8)),
        damaged({"a": {**ONE, "data_offsets": [0]}}, bytes(8)),
        damaged({"a": ONE}, bytes(7)),
        damaged({"a": ONE}, bytes(9)),
        damaged({"a": ONE, "b": ONE}, bytes(8)),
        damaged({"a": {**ONE, "data_offsets": [8, 16]}}, bytes(16)),
        damaged({}),
    ],
)
def test_a_damaged_shard_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ConvertError):
        open_checkpoint(tmp_path)


def test_tensors_are_found_in_the_order_of_the_reference(tmp_path: Path) -> None:
    write_shard(tmp_path / "model-00002-of-00002.safetensors", {"a": np.zeros(1, "<f4")})
    write_shard(tmp_path / "model-00001-of-00002.safetensors", {"c": np.zeros((2, 3), "<f2"), "b": np.ones(4, "<u2")})
    found = open_checkpoint(tmp_path)
    assert list(found.tensors) == ["b", "c", "a"]
    b = found.tensors["b"]
    assert (b.dtype, b.shape, b.n_bytes) == ("BF16", (4,), 8)
    assert b.path.read_bytes()[b.offset : b.offset + 8] == np.ones(4, "<u2").tobytes()


def test_one_name_in_two_shards_is_refused(tmp_path: Path) -> None:
    for n in (1, 2):
        write_shard(tmp_path / f"model-0000{n}-of-00002.safetensors", {"a": np.zeros(1, "<f4")})
    with pytest.raises(ConvertError, match="a is in two shards"):
        open_checkpoint(tmp_path)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_weights(folder, {"model.layers.0.mlp.\x1b[31mexperts.weight": np.zeros((2, 2), "<f4")})
    error = refused(folder, "model.layers.0.mlp.\\x1b[31mexperts.weight has no place")
    assert "--converter" in error.hint


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    tensors = read_shard(folder / "model.safetensors")
    edit_weights(folder, {name: None for name in tensors if ".layers.1." in name})
    refused(folder, "config.json says 2 layers, and the weights have none for layer 1")


def test_an_expert_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = copied("mixtral", tmp_path)
    edit_weights(folder, {"model.layers.1.block_sparse_moe.experts.3.w2.weight": None})
    refused(folder, "sets that are not complete", "model.layers.1.block_sparse_moe.experts.0.w1")


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    refused(folder, "quantized already (gptq)")
    edit_json(folder / "config.json", quantization_config=None)
    edit_weights(folder, {"model.norm.weight": np.zeros(256, "|u1")})
    refused(folder, "output_norm.weight is stored as U8")
