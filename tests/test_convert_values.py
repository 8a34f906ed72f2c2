"""Numbers through conversion: what is kept bit for bit, what is rounded, what does not fit."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llmrun.convert import weight as weights
from llmrun.convert.checkpoint import open_checkpoint
from llmrun.convert.pipeline import convert
from llmrun.errors import ConvertError
from llmrun.report import Quiet
from tests.checkpoints import Array, bf16, copied, edit_weights, read_shard, write_shard
from tests.gguf_digest import GgufFile

UP = "model.layers.0.mlp.up_proj.weight"


def folder_with(tmp_path: Path, values: dict[tuple[int, int], float], dtype: str = "bf16") -> tuple[Path, Array]:
    """llama_spm with some values of one matrix replaced, and that matrix as float32."""
    folder = copied("llama_spm", tmp_path)
    stored = read_shard(folder / "model.safetensors")[UP]
    numbers = (stored.astype("<u4") << 16).view("<f4").copy()
    for place, value in values.items():
        numbers[place] = value
    new = bf16(numbers) if dtype == "bf16" else numbers.astype({"f16": "<f2", "f32": "<f4", "f64": "<f8"}[dtype])
    edit_weights(folder, {UP: new})
    return folder, numbers


def written(folder: Path, type: str, report: Quiet | None = None) -> tuple[str, bytes]:
    out = folder.parent / "out.gguf"
    convert(folder, out, type=type, force=True, report=report or Quiet())
    tensor, data = GgufFile(out).tensor("blk.0.ffn_up.weight")
    return tensor.type, bytes(data)


def test_cvt_07_bf16_is_kept_bit_for_bit(tmp_path: Path) -> None:
    """CVT-07. By auto and by --type bf16; norms are F32."""
    folder, _ = folder_with(tmp_path, {(0, 0): 1e30, (3, 5): 1e-30})
    stored = read_shard(folder / "model.safetensors")
    for type in ("auto", "bf16"):
        assert written(folder, type) == ("BF16", stored[UP].tobytes())
        file = GgufFile(tmp_path / "out.gguf")
        tensor, data = file.tensor("blk.0.ffn_norm.weight")
        norm = stored["model.layers.0.post_attention_layernorm.weight"]
        assert tensor.type == "F32" and bytes(data) == (norm.astype("<u4") << 16).tobytes()
        assert file.keys["general.file_type"] == ("UINT32", 32)


def test_cvt_07_what_overflows_f16_stops_with_tensor_and_count(tmp_path: Path) -> None:
    """CVT-07. The reference writes infinity and says nothing."""
    folder, _ = folder_with(tmp_path, {(0, 0): 1e30, (3, 5): 1e-30, (7, 7): -7e4})
    with pytest.raises(ConvertError) as caught:
        convert(folder, tmp_path / "out.gguf", type="f16", report=Quiet())
    assert caught.value.message == "2 values of blk.0.ffn_up.weight are too large for F16"
    assert "bf16" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_cvt_07_what_is_only_small_is_rounded(tmp_path: Path) -> None:
    """CVT-07. 1e-30 is zero in F16, and the largest bf16 below F16's end still fits."""
    folder, numbers = folder_with(tmp_path, {(3, 5): 2.0**-100, (0, 0): 65280.0})
    assert written(folder, "f16") == ("F16", numbers.astype("<f2").tobytes())


def test_a_q8_0_block_whose_scale_overflows_stops(tmp_path: Path) -> None:
    folder, _ = folder_with(tmp_path, {(0, 0): 1e30})
    with pytest.raises(ConvertError, match=r"1 value of blk\.0\.ffn_up\.weight .* Q8_0"):
        convert(folder, tmp_path / "out.gguf", type="q8_0", report=Quiet())


def test_an_f32_beyond_bf16_stops(tmp_path: Path) -> None:
    folder, _ = folder_with(tmp_path, {(0, 0): 3.4e38}, "f32")
    with pytest.raises(ConvertError, match="BF16"):
        convert(folder, tmp_path / "out.gguf", type="bf16", report=Quiet())


@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_numbers_that_are_not_finite_in_the_checkpoint_are_noted(dtype: str, type: str, tmp_path: Path) -> None:
    """They are no fault of conversion, so it goes on."""
    folder, _ = folder_with(tmp_path, {(0, 0): float("nan"), (9, 9): float("-inf")}, dtype)
    report = Quiet()
    written(folder, type, report)
    assert report.notes == ["blk.0.ffn_up.weight has 2 values that are not finite; so it is in the checkpoint"]


def test_f64_becomes_what_is_asked_for(tmp_path: Path) -> None:
    folder, numbers = folder_with(tmp_path, {(0, 0): 1 / 3}, "f64")
    assert written(folder, "f32") == ("F32", numbers.tobytes())


def test_q8_0_is_gguf_s_own(tmp_path: Path) -> None:
    folder, numbers = folder_with(tmp_path, {})
    wanted = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    assert written(folder, "q8_0") == ("Q8_0", wanted.tobytes())


# Tensors that are not in memory: pieces, layouts.


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors come in several pieces."""
    monkeypatch.setattr(weights, "PIECE_BYTES", 100)


def stored_weight(tmp_path: Path, array: Array) -> weights.Weight:
    write_shard(tmp_path / "model.safetensors", {"a": array})
    return weights.stored(open_checkpoint(tmp_path).tensors["a"])


def joined(weight: weights.Weight) -> Array:
    pieces = [np.asarray(piece).reshape(-1) for piece in weight.pieces()]
    return np.concatenate(pieces).reshape(weight.shape)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (64, 16), (3, 4, 5), (2, 300)])
def test_pieces_put_together_are_the_tensor(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.arange(int(np.prod(shape)), dtype="<f4").reshape(shape)
    weight = stored_weight(tmp_path, array)
    assert np.array_equal(joined(weight), array) and np.array_equal(weight.read(), array)
    assert all(piece.shape[-1:] == (array.shape[-1:] or (1,)) for piece in weight.pieces())


@pytest.mark.usefixtures("small_pieces")
def test_layouts(tmp_path: Path) -> None:
    array = np.arange(24 * 6, dtype="<f2").reshape(24, 6)
    weight = stored_weight(tmp_path, array)
    assert np.array_equal(joined(weights.transposed(weight)), array.T)
    assert np.array_equal(joined(weights.rows(weight, 5, 17)), array[5:17])
    assert np.array_equal(joined(weights.rows(weight, 5, 99)), array[5:])
    assert np.array_equal(joined(weights.stack([weight, weight, weight])), np.stack([array] * 3))
    # Head 0 of two has rows 0 to 11: its halves are woven together.
    permuted = joined(weights.permuted(weight, 2))
    assert np.array_equal(permuted[:12], array[[0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]])


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    array = np.zeros((10, 4), "<f4")
    weight = stored_weight(tmp_path, array)
    with pytest.raises(ConvertError, match="cannot be split into 4 heads"):
        weights.permuted(weight, 4)
    with pytest.raises(ConvertError, match="differ"):
        weights.stack([weight, weights.transposed(weight)])


def test_a_shard_that_shrinks_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    weight = stored_weight(tmp_path, np.zeros((100, 4), "<f4"))
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(600)
    with pytest.raises(ConvertError, match="cut short while it was read"):
        list(weight.pieces())


def test_memory_stays_near_one_piece(tmp_path: Path) -> None:
    """A matrix of 64 MB goes through in pieces of 4."""
    import tracemalloc

    folder = copied("llama_spm", tmp_path)
    edit_weights(folder, {"lm_head.weight": np.zeros((131_072, 256), "<u2")})
    peak = _peak(folder, tmp_path / "out.gguf", tracemalloc)
    assert peak < 32 << 20


def _peak(folder: Path, out: Path, tracemalloc: Any) -> int:
    from llmrun.convert.plan import make_plan
    from llmrun.convert.write import write_file

    plan = make_plan(folder, out, type="q8_0")
    tracemalloc.start()
    write_file(out, plan.kv, plan.outputs, Quiet())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(peak, int)
    return peak
