"""The mix of types for a size: the search on paper, the errors against quantizing for real, and the command."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from llmrun.errors import QuantizeError, UsageError
from llmrun.gguf.header import open_header
from llmrun.quant.error import Choice, Place, choices, through
from llmrun.quant.mix import Mix, choose, lower_hull, name_of
from llmrun.quant.target import parse_size
from llmrun.quant.types import TENSOR_TYPES_BY_NAME
from tests.cli import llmrun
from tests.tiny import tiny_gguf


@pytest.fixture(scope="module")
def f16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("mix") / "tiny-f16.gguf", n_embd=256, n_ff=512, qtype="F16")


def test_the_hull_has_what_no_two_others_beat() -> None:
    found = [Choice("a", 32, 8.0), Choice("b", 64, 6.0), Choice("c", 96, 1.0), Choice("d", 128, 2.0)]
    assert [choice.type for choice in lower_hull([*found, Choice("e", 320, 0.5)])] == ["a", "c", "e"]


def test_the_search_is_near_the_best_there_is() -> None:
    rng = np.random.default_rng(3)
    sizes = (320, 640, 960)
    options = {}
    for i in range(5):
        errors = sorted(rng.random(3), reverse=True)
        options[f"blk.{i}.attn_q.weight"] = [
            Choice(str(n), n, float(error)) for n, error in zip(sizes, errors, strict=True)
        ]
    budget = 3000
    found = choose(options, {}, budget)
    assert found.n_bytes <= budget
    sums = [
        sum(choice.error for choice in picks)
        for picks in itertools.product(*options.values())
        if sum(choice.n_bytes for choice in picks) <= budget
    ]
    assert found.error <= 1.15 * min(sums)


def test_weights_move_bits() -> None:
    pair = [Choice("small", 32, 1.0), Choice("large", 64, 0.1)]
    options = {"output.weight": pair, "blk.0.attn_q.weight": pair}
    assert choose(options, {"output": 5.0}, 96).types["output.weight"] == "large"
    assert choose(options, {"attn_q": 5.0}, 96).types["blk.0.attn_q.weight"] == "large"
    with pytest.raises(QuantizeError, match="smallest types take 64 B"):
        choose(options, {}, 63)


def test_rules_name_each_tensor_once() -> None:
    import re

    types = {
        "token_embd.weight": "Q6_K",
        **{f"blk.{i}.attn_v.weight": "Q4_K" if i % 2 else "Q5_K" for i in range(12)},
    }
    rules = Mix(types, 0, 0.0).rules()
    for name, type in types.items():
        assert [rule.name for pattern, rule in rules if re.search(pattern, name)] == [type]
    assert name_of(4.5) == "Q4_K_M"


def test_errors_fall_with_bits_and_are_those_of_real_rows(f16: Path) -> None:
    header = open_header(f16)
    tensor = next(t for t in header.tensors if t.name == "blk.0.ffn_up.weight")
    found = {choice.type: choice for choice in choices(Place(f16, header, tensor), None)}
    assert found["Q8_0"].error < found["Q6_K"].error < found["Q5_K"].error < found["Q4_K"].error < found["Q2_K"].error
    assert found["Q4_K"].n_bytes == tensor.n_elements * 144 // 256
    assert not {"IQ2_XXS", "IQ3_XXS"} & found.keys()  # they need a matrix
    rows = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    off = rows - through(TENSOR_TYPES_BY_NAME["Q8_0"], rows, None)
    assert 0 < np.abs(off).max() < np.abs(rows).max() / 127


def test_sizes_as_people_write_them() -> None:
    assert [parse_size(text) for text in ("4GB", "1.5 gib", "900M", "12")] == [4 * 10**9, 3 * 2**29, 9 * 10**8, 12]
    with pytest.raises(UsageError, match="is no size"):
        parse_size("large")


def test_the_command_reaches_the_size(f16: Path, tmp_path: Path) -> None:
    q4 = json.loads(llmrun("quantize", f16, "Q4_K_M", "--dry-run", "--json").text)["size_after"]
    words = ("quantize", f16, tmp_path / "o.gguf", "--target-size", f"{q4}B", "--imatrix", "none", "--json")
    done = llmrun(*words)
    assert done.status == 0, done.err
    result = json.loads(done.text)
    assert 0.9 * q4 < result["size_after"] <= q4
    assert result["size_after"] == (tmp_path / "o.gguf").stat().st_size
    assert any(line.startswith("attn_v: ") for line in result["mix"])
    bits = llmrun("quantize", f16, tmp_path / "b.gguf", "--target-bpw", 5, "--imatrix", "none", "--json")
    assert 4.5 < json.loads(bits.text)["bits_after"] <= 5
    llmrun("quantize", f16, tmp_path / "c.gguf", "--target-size", "9kB").failed(2, "larger size")
    llmrun("quantize", f16, "Q4_0", "x.gguf", "--target-bpw", 5).failed(2, "names no type")


def test_a_target_makes_its_own_matrix_and_its_damage_is_reported(f16: Path, tmp_path: Path, home: Path) -> None:
    words = ("quantize", f16, tmp_path / "o.gguf", "--target-bpw", 4.5, "--report", "--json")
    done = llmrun(*words)
    assert done.status == 0, done.err
    result = json.loads(done.text)
    assert result["imatrix"] == "auto"
    assert len(list((home / "cache" / "imatrix").iterdir())) == 1
    assert open_header(tmp_path / "o.gguf").metadata["quantize.imatrix.file"] == "auto"
    small, whole = result["report"]["rows"]
    assert (small["path"], whole["path"]) == (str(tmp_path / "o.gguf"), str(f16))
    assert small["size_bytes"] < whole["size_bytes"]
    assert small["divergence"]["kld_mean"]["value"] > whole["divergence"]["kld_mean"]["value"] == 0
    assert result["report"]["text"] == "written by the model, seed 2"
    assert "the model writes one to compare on (seed 2)" in done.err
