"""GGUF-01: what is taken for a GGUF and is not is named, with the next thing to do."""

import gzip
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from llmrun.errors import ModelFileError, NotFoundError
from llmrun.gguf.header import open_header

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n"
TENSORS = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
FOREIGN = {
    "html": (b"<!doctype html><html></html>", "x.gguf is an HTML page, not a GGUF"),
    "html_after_bom": (b"\xef\xbb\xbf\n <HTML>", "an HTML page"),
    "xml": (b"<?xml version='1.0'?><Error/>", "an XML document"),
    "json": (b'{"error": "Repository not found"}', "a JSON text"),
    "empty": (b"", "x.gguf is empty (0 bytes)"),
    "safetensors": (struct.pack("<Q", len(TENSORS)) + TENSORS + bytes(4), "a safetensors file"),
    "gzip": (gzip.compress(b"GGUF"), "gzip data"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd data"),
    "pickle": (pickle.dumps({"a": 1}), "a pickle"),
    "ggml": (b"lmgg" + bytes(20), "an old ggml file"),
    "ggjt": (b"tjgg" + bytes(20), "an old ggjt file"),
    "zeros": (bytes(4096), "a run of zeros"),
    "text": (b"Not here", "a file that starts with '4e 6f 74 20'"),
    "short": (b"GG", "a file that starts with 'GG'"),
}


def refusal(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        open_header(path)
    return caught.value


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_named(name: str, tmp_path: Path) -> None:
    data, expected = FOREIGN[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    fault = refusal(path)
    assert expected in fault.message
    assert fault.hint


def test_lfs_pointer_tells_its_real_size(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(LFS)
    assert refusal(path).message == (
        "a.gguf is a Git LFS pointer (real size 98 MB); fetch it with git lfs pull or llmrun pull"
    )


def test_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    assert "a zip archive" in refusal(path).message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        open_header(tmp_path / "none.gguf")


def test_folder(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path).message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    assert "is a pipe" in refusal(path).message


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this platform has no /dev/zero")
def test_device() -> None:
    assert "a device or socket" in refusal(Path("/dev/zero")).message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    assert "cannot be read" in refusal(path).message
