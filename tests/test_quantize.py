"""`llmrun quantize`: the library's own bytes, never onto the input, and every refusal before anything is written."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from llmrun.engine import capi
from llmrun.errors import UsageError
from llmrun.gguf.header import open_header
from llmrun.gguf.types import FILE_TYPES
from llmrun.quant.imatrix_file import Activations, Imatrix, write_imatrix
from llmrun.quant.types import DEFAULT_TENSOR_TYPE, find_file_type, parse_file_type
from tests.cli import LLMRUN, environment, llmrun
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def f16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows K-quants divide."""
    return tiny_gguf(tmp_path_factory.mktemp("f16") / "tiny-f16.gguf", n_embd=256, n_ff=512, qtype="F16")


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, f16: Path) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "tiny.imatrix.gguf"
    write_imatrix(path, some_matrix(f16))
    return path


def some_matrix(model: Path, seed: int = 1) -> Imatrix:
    rng = np.random.default_rng(seed)
    entries = {
        tensor.name: Activations(rng.random((1, tensor.shape[0]), dtype=np.float32) * 512, np.array([512]))
        for tensor in open_header(model).tensors
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2
    }
    return Imatrix(entries, n_chunks=1, chunk_size=512, datasets=("some.txt",), model="tiny")


def bare_call(source: Path, target: Path, kind: str) -> bytes:
    lib = capi.lib()
    params = lib.llama_model_quantize_default_params()
    params.ftype = next(number for number, name in FILE_TYPES.items() if name == kind)
    params.nthread = 2
    assert lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) == 0
    return target.read_bytes()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS", "Q2_K", "BF16", "TQ1_0", "F32"])
def test_bytes_are_those_of_the_bare_call(f16: Path, tmp_path: Path, kind: str) -> None:
    result = llmrun("quantize", f16, kind, tmp_path / "ours.gguf", "--json")
    assert result.status == 0, result.err
    ours = (tmp_path / "ours.gguf").read_bytes()
    assert ours == bare_call(f16, tmp_path / "bare.gguf", kind)
    shown = json.loads(result.text)
    assert shown["size_after"] == len(ours)
    assert shown["size_before"] == f16.stat().st_size
    dry = json.loads(llmrun("quantize", f16, kind, "--dry-run", "--json").text)
    assert dry["size_after"] == len(ours)
    types = {tensor.name: tensor.type.name for tensor in open_header(tmp_path / "ours.gguf").tensors}
    assert {tensor["name"]: tensor["type_after"] for tensor in dry["tensors"]} == types


def test_low_bits_with_a_matrix(f16: Path, matrix: Path, tmp_path: Path) -> None:
    result = llmrun("quantize", f16, "iq2_xxs", "out.gguf", "--imatrix", matrix, "--json", cwd=tmp_path)
    assert result.status == 0, result.err
    header = open_header(tmp_path / "out.gguf")
    assert header.metadata["quantize.imatrix.file"] == str(matrix)[:127]
    assert header.metadata["quantize.imatrix.dataset"] == "some.txt"
    assert header.metadata["quantize.imatrix.entries_count"] == 14
    assert header.metadata["quantize.imatrix.chunks_count"] == 1
    planned = llmrun("quantize", f16, "iq2_xxs", "--imatrix", matrix, "--dry-run", "--json")
    assert json.loads(planned.text)["size_after"] == header.file_size


def test_options_reach_the_tensors(f16: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = llmrun(
        "quantize", f16, out, "Q4_K_S", "--tensor", "attn_v=q6_k", "--output-type", "q5_1",
        "--embedding-type", "Q3_K", "--prune", "0", "-t", 1,
    )  # fmt: skip
    assert result.status == 0, result.err
    header = open_header(out)
    types = {tensor.name: tensor.type.name for tensor in header.tensors}
    assert header.metadata["llama.block_count"] == 1
    assert not [name for name in types if name.startswith("blk.1.")]
    assert types["blk.0.attn_v.weight"] == "Q6_K"
    assert types["output.weight"] == "Q5_1"
    assert types["token_embd.weight"] == "Q3_K"
    assert types["blk.0.attn_q.weight"] == "Q4_K"
    pure = tmp_path / "pure.gguf"
    assert llmrun("quantize", f16, pure, "Q4_K_S", "--pure").status == 0
    matrices = [t for t in open_header(pure).tensors if len(t.shape) == 2]
    assert {tensor.type.name for tensor in matrices} == {"Q4_K"}


def test_the_result_runs(f16: Path, tmp_path: Path) -> None:
    assert llmrun("quantize", f16, "Q5_K_M", tmp_path / "q.gguf").status == 0
    assert llmrun("run", tmp_path / "q.gguf", "hi", "-n", 3, "--temp", 0).status == 0


def test_qnt01_the_input_is_never_the_output(f16: Path, tmp_path: Path) -> None:
    """QNT-01"""
    before = f16.read_bytes()
    a, b, c = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    a.write_bytes(before)
    b.symlink_to(a)
    c.hardlink_to(a)
    for target in (("a.gguf",), ("./a.gguf", "--force"), ("b.gguf", "--force"), ("c.gguf", "--force")):
        result = llmrun("quantize", "a.gguf", target[0], "Q4_K_M", *target[1:], cwd=tmp_path)
        result.failed(2, "input itself", "output")
    assert a.read_bytes() == before
    other = tmp_path / "other.gguf"
    other.write_bytes(b"mine")
    llmrun("quantize", a, other, "Q4_K_M").failed(2, "exists", "--force")
    assert other.read_bytes() == b"mine"
    assert llmrun("quantize", a, other, "Q4_K_M", "--force").status == 0
    assert other.read_bytes()[:4] == b"GGUF"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf", "c.gguf", "other.gguf"]


def test_qnt03_what_fell_back_is_said(smollm2: Path, tmp_path: Path) -> None:
    """QNT-03"""
    out = tmp_path / "out.gguf"
    result = llmrun("quantize", smollm2, out, "Q4_K_M", "--allow-requantize")
    assert result.status == 0, result.err
    (fell, larger) = result.err.splitlines()
    assert "180 of 272 tensors fell back" in fell
    assert "576" in fell
    assert "166 Q4_K -> Q5_0" in fell
    assert "not smaller" in larger
    assert "98 MB -> 105 MB (5.74 -> 6.17 bits per weight)" in result.text
    refused = llmrun("quantize", smollm2, tmp_path / "again.gguf", "Q4_K_M")
    refused.failed(1, "quantized already", "--allow-requantize")
    assert not (tmp_path / "again.gguf").exists()


def test_qnt04_types_that_need_a_matrix(f16: Path, tmp_path: Path) -> None:
    """QNT-04"""
    out = tmp_path / "o.gguf"
    llmrun("quantize", f16, out, "IQ2_XXS").failed(1, "needs an importance matrix", "--imatrix", "Q2_K")
    embedding = llmrun("quantize", f16, out, "Q4_K_M", "--embedding-type", "IQ2_XXS")  # the library would abort
    embedding.failed(1, "needs an importance matrix")
    other = tiny_gguf(tmp_path / "other.gguf", n_embd=256, n_ff=256, n_layer=1, qtype="F16")
    write_imatrix(tmp_path / "other.imatrix", some_matrix(other))
    wrong = llmrun("quantize", f16, out, "IQ2_XXS", "--imatrix", tmp_path / "other.imatrix")
    wrong.failed(1, "another model", "made from tiny on some.txt")
    few = some_matrix(f16)
    some = {name: entry for name, entry in few.entries.items() if name.startswith("blk.0.")}
    write_imatrix(tmp_path / "few.imatrix", Imatrix(some, 1, 512, ("some.txt",), "tiny"))
    lacking = llmrun("quantize", f16, out, "IQ2_XXS", "--imatrix", tmp_path / "few.imatrix")
    lacking.failed(1, "lacks 6 of the", "blk.1.", "made from tiny on some.txt")
    (tmp_path / "no.txt").write_text("hello, this is no matrix", encoding="utf-8")
    llmrun("quantize", f16, out, "IQ2_XXS", "--imatrix", tmp_path / "no.txt").failed(1, "not an imatrix file")
    llmrun("quantize", f16, out, "IQ2_XXS", "--imatrix", tmp_path / "gone").failed(1, "no such file")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "o."))]


def test_qnt06_names_in_any_spelling(f16: Path, tmp_path: Path) -> None:
    """QNT-06"""
    for text in ("q4_k_m", "Q4KM", "q4-k-m", "15", "Q4_K"):
        assert parse_file_type(text) == "Q4_K_M"
    assert parse_file_type("q8") == "Q8_0"
    assert find_file_type("Q4") is None
    with pytest.raises(UsageError, match=r"Q4_0, Q4_1, Q4_K_S, Q4_K_M"):
        parse_file_type("Q4")
    llmrun("quantize", f16, tmp_path / "o.gguf", "Q9_Z").failed(2, "no type is called", "did you mean", "Q8_0")
    copy = tmp_path / "model-f16.gguf"
    copy.write_bytes(f16.read_bytes())
    result = llmrun("quantize", copy, "q4_k_m")
    assert result.status == 0, result.err
    assert "model-Q4_K_M.gguf" in result.text
    assert (tmp_path / "model-Q4_K_M.gguf").is_file()


def test_the_list_has_every_type_the_library_makes(f16: Path) -> None:
    listed = {row["type"] for row in json.loads(llmrun("quantize", "--list", "--json").text)}
    assert listed == set(DEFAULT_TENSOR_TYPE)
    sizes = json.loads(llmrun("quantize", f16, "--list", "--json").text)
    assert [row["size"] for row in sizes] == sorted(row["size"] for row in sizes)
    assert {row["type"] for row in sizes} == listed


def test_bad_words_are_usage_errors(f16: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    llmrun("quantize").failed(2, "no model")
    llmrun("quantize", f16).failed(2, "no type")
    llmrun("quantize", f16, "Q8_0", out, "x").failed(2, "too many")
    llmrun("quantize", f16, "Q8_0", out, "--tensor", "x").failed(2, "RE=TYPE")
    llmrun("quantize", f16, "Q8_0", out, "--tensor", "(=Q8_0").failed(2, "--tensor (")
    llmrun("quantize", f16, "Q8_0", out, "--tensor", "a=Q9").failed(2, "no tensor type", "did you mean")
    llmrun("quantize", f16, "Q8_0", out, "--prune", "9").failed(2, "layers 0 to 1")
    llmrun("quantize", f16, "Q8_0", tmp_path / "no" / "o.gguf").failed(2, "is no folder")
    llmrun("quantize", f16, "Q8_0", tmp_path).failed(2, "is a folder")


def test_an_incomplete_source_is_named(f16: Path, tmp_path: Path) -> None:
    """GGUF-02"""
    half = tmp_path / "half.gguf"
    half.write_bytes(f16.read_bytes()[:-16])
    llmrun("quantize", half, "Q8_0", tmp_path / "o.gguf").failed(1, "incomplete")
    assert not (tmp_path / "o.gguf").exists()


def test_a_disk_without_room_is_refused_before_anything_is_written(smollm2: Path, small_disk: Path) -> None:
    full = llmrun("quantize", smollm2, "Q8_0", small_disk / "o.gguf", "--allow-requantize")
    full.failed(1, "the result takes 145 MB", "8.4 MB free", "free some space")
    assert not list(small_disk.iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ending_it_leaves_no_output(smollm2: Path, tmp_path: Path, how: signal.Signals) -> None:
    words = ["quantize", str(smollm2), "o.gguf", "IQ4_XS", "--allow-requantize", "-t", "1"]
    process = subprocess.Popen(
        [*LLMRUN, *words], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for _ in range(600):
        if any(path.name.endswith(".part") for path in tmp_path.iterdir()):
            break
        time.sleep(0.1)
    asked = time.monotonic()
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < 30
    assert not (tmp_path / "o.gguf").exists()
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert err.decode().strip() == "interrupted"
        assert not list(tmp_path.iterdir())


def in_parts(model: Path, folder: Path) -> Path:
    import gguf

    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(folder / "s.gguf", "llama", split_max_tensors=8)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "s-00001-of-00003.gguf"


def test_a_split_source_is_joined_or_kept_split(f16: Path, tmp_path: Path) -> None:
    source = in_parts(f16, tmp_path)
    joined = llmrun("quantize", source, "Q8_0", tmp_path / "one.gguf")
    assert joined.status == 0, joined.err
    whole = llmrun("quantize", f16, "Q8_0", tmp_path / "whole.gguf", "--json")
    assert (tmp_path / "one.gguf").stat().st_size == json.loads(whole.text)["size_after"]
    kept = json.loads(llmrun("quantize", source, "Q8_0", tmp_path / "k.gguf", "--keep-split", "--json").text)
    assert [Path(path).name for path in kept["paths"]] == [f"k-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    dry = json.loads(llmrun("quantize", source, "Q8_0", "--keep-split", "--dry-run", "--json").text)
    assert dry["size_after"] == kept["size_after"]
    llmrun("quantize", source, "Q8_0", tmp_path / "s.gguf", "--keep-split").failed(2, "input itself")
