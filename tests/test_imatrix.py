"""Importance matrices: what a model's activations are, to the number, and files that survive their reader."""

import json
from pathlib import Path

import numpy as np
import pytest

from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import Interrupted, QuantizeError
from llmrun.prepare.quantizing import auto_matrix
from llmrun.quant.calibration import write_text
from llmrun.quant.imatrix import make_imatrix
from llmrun.quant.imatrix_file import Activations, Imatrix, merge, read_imatrix, write_imatrix
from llmrun.quant.quantize import Source
from llmrun.report import Quiet
from tests.cli import llmrun
from tests.tiny import tiny_gguf

TEXT = "".join(f"{i} and {i * i}, the tin in the inn. " for i in range(200))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_embd=256, n_ff=512)


def made(path: Path, out: Path, **more: object) -> Imatrix:
    with Model.load(path, ModelSettings()) as model:
        settings = {"text": TEXT, "n_ctx": 64, "dataset": "text", "report": Quiet(), "n_threads": 1, **more}
        make_imatrix(model, target=out, **settings)  # type: ignore[arg-type]
    return read_imatrix(out)


def test_the_first_layers_inputs_are_the_normed_embeddings(tiny: Path, tmp_path: Path) -> None:
    """Computed by hand from the weights: RMS norm of the embedding rows of the tokens."""
    import gguf

    matrix = made(tiny, tmp_path / "m.gguf", n_chunks=3)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tiny).tensors}
    with Model.load(tiny, ModelSettings(vocab_only=True)) as model:
        tokens = model.vocab.tokenize(TEXT)[: 3 * 64]
    rows = np.array(tensors["token_embd.weight"], dtype=np.float64)[tokens]
    rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5)
    rows *= np.array(tensors["blk.0.attn_norm.weight"])
    entry = matrix.entries["blk.0.attn_q.weight"]
    assert entry.counts.tolist() == [3 * 64]
    np.testing.assert_allclose(entry.sums[0], (rows**2).sum(axis=0), rtol=1e-4)
    assert len(matrix.entries) == 14
    assert matrix.n_chunks == 3
    assert matrix.chunk_size == 64
    assert matrix.model == "tiny.gguf"


def test_values_are_those_of_llama_imatrix(tiny: Path, tmp_path: Path) -> None:
    """What it makes of this model and TEXT with -c 64 --chunks 8: the first of each tensor, and their sum."""
    matrix = made(tiny, tmp_path / "m.gguf", n_chunks=8)
    for name, first, total in (
        ("blk.0.attn_q", [1.2963175, 0.4092661, 0.62086916, 0.6419222], 254.11563),
        ("blk.1.attn_output", [0.19639674, 0.12480094, 0.1270135, 0.14228277], 74.09468),
        ("blk.1.ffn_down", [0.08973014, 0.07543295, 0.20803003, 0.6468838], 176.35725),
    ):
        means = matrix.entries[f"{name}.weight"].means()
        np.testing.assert_allclose([*means[:4], means.sum()], [*first, total], rtol=1e-3)


def test_experts_are_counted_one_by_one(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "moe.gguf", n_expert=4)
    matrix = made(path, tmp_path / "m.gguf", n_chunks=2)
    for kind in ("gate", "up", "down"):
        entry = matrix.entries[f"blk.0.ffn_{kind}_exps.weight"]
        assert entry.sums.shape[0] == entry.counts.size == 4
        assert entry.counts.sum() == 2 * 2 * 64  # two experts a token
    dense = matrix.entries["blk.0.ffn_gate_inp.weight"]
    both = matrix.entries["blk.0.ffn_up_exps.weight"]
    np.testing.assert_allclose(both.sums.sum(axis=0), 2 * dense.sums[0], rtol=1e-4)


def test_going_on_gives_what_one_run_gives(tiny: Path, tmp_path: Path) -> None:
    whole = made(tiny, tmp_path / "whole.gguf")
    made(tiny, tmp_path / "part.gguf", n_chunks=40)
    resumed = made(tiny, tmp_path / "part.gguf")
    assert resumed.n_chunks == whole.n_chunks > 40
    for name, entry in whole.entries.items():
        np.testing.assert_allclose(resumed.entries[name].sums, entry.sums, rtol=1e-4)
        assert resumed.entries[name].counts.tolist() == entry.counts.tolist()
    with pytest.raises(QuantizeError, match="was made on text in chunks of 64"):
        made(tiny, tmp_path / "part.gguf", dataset="another")


def test_what_was_made_from_others_is_not_gone_on_from(tiny: Path, tmp_path: Path) -> None:
    """Of one name, shape and file name: the numbers would be those of neither."""
    kept = made(tiny, tmp_path / "m.gguf", n_chunks=2)
    other = tiny_gguf(tmp_path / "other.gguf", n_embd=256, n_ff=512, seed=9)
    with pytest.raises(QuantizeError, match=r"was made from tiny\.gguf"):
        made(other, tmp_path / "m.gguf", n_chunks=2)
    with pytest.raises(QuantizeError, match="was made when text held another text"):
        made(tiny, tmp_path / "m.gguf", n_chunks=2, text=TEXT.replace("tin", "inn"))
    name = "blk.0.attn_q.weight"
    np.testing.assert_array_equal(read_imatrix(tmp_path / "m.gguf").entries[name].sums, kept.entries[name].sums)
    anew = made(other, tmp_path / "m.gguf", n_chunks=3, anew=True)
    assert (anew.model, anew.n_chunks) == ("other.gguf", 3)


def test_an_interrupt_keeps_whole_chunks(tiny: Path, tmp_path: Path) -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 200

    with pytest.raises(Interrupted, match="interrupted"):
        made(tiny, tmp_path / "m.gguf", stop=stop)
    kept = read_imatrix(tmp_path / "m.gguf")
    assert 0 < kept.n_chunks < made(tiny, tmp_path / "whole.gguf").n_chunks
    assert all(entry.counts.tolist() == [kept.n_chunks * 64] for entry in kept.entries.values())


def test_files_round_trip_and_merge(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = Imatrix({"x": Activations(rng.random((2, 8), np.float32), np.array([3, 0]))}, 1, 64, ("a",), "m")
    b = Imatrix({"x": Activations(rng.random((2, 8), np.float32), np.array([1, 2]))}, 2, 64, ("b",), "m")
    write_imatrix(tmp_path / "a", a)
    back = read_imatrix(tmp_path / "a")
    np.testing.assert_array_equal(back.entries["x"].sums, a.entries["x"].sums)
    assert (back.n_chunks, back.chunk_size, back.datasets, back.model) == (1, 64, ("a",), "m")
    assert back.entries["x"].means()[8:].tolist() == [1.0] * 8  # an expert that was never used
    both = merge([a, b])
    assert both.datasets == ("a", "b")
    assert both.n_chunks == 3
    assert both.entries["x"].counts.tolist() == [4, 2]
    with pytest.raises(QuantizeError, match="chunks of 64 and 32"):
        merge([a, Imatrix(b.entries, 2, 32, ("b",), "m")])
    with pytest.raises(QuantizeError, match="shape of x"):
        merge([a, Imatrix({"x": Activations(np.ones((1, 8), np.float32), np.array([1]))}, 2, 64)])


def test_the_older_form_is_read(tmp_path: Path) -> None:
    import struct

    values = np.arange(4, dtype="<f4") + 1
    raw = struct.pack("<i", 1) + struct.pack("<i", 1) + b"x" + struct.pack("<ii", 2, 4) + values.tobytes()
    (tmp_path / "m.dat").write_bytes(raw + struct.pack("<ii", 2, 3) + b"abc")
    old = read_imatrix(tmp_path / "m.dat")
    assert old.entries["x"].means().tolist() == [0.5, 1.0, 1.5, 2.0]
    assert old.datasets == ("abc",)
    for cut in (2, 6, 12, 20):
        (tmp_path / "cut").write_bytes(raw[:cut])
        with pytest.raises(QuantizeError, match="not an imatrix file"):
            read_imatrix(tmp_path / "cut")


def test_a_model_writes_the_same_text_for_the_same_seed(tiny: Path) -> None:
    with Model.load(tiny, ModelSettings()) as model:
        texts = [write_text(model, report=Quiet(), n_threads=1, seed=seed, n_tokens=300) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) > 200


def test_the_command_makes_and_merges(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    first = llmrun("imatrix", tiny, "-f", "text.txt", "-o", "a.gguf", "--chunks", 2, "-c", 64, "--json", cwd=tmp_path)
    assert first.status == 0, first.err
    assert json.loads(first.text)["n_chunks"] == 2
    both = llmrun("imatrix", "--merge", "a.gguf", "--merge", "a.gguf", "-o", "b.gguf", cwd=tmp_path)
    assert "14 tensors, 4 chunks" in both.text
    llmrun("imatrix", "--merge", "a.gguf", "-o", "a.gguf", cwd=tmp_path).failed(2, "input itself")
    (tmp_path / "short.txt").write_text("hi", encoding="utf-8")
    llmrun("imatrix", tiny, "-f", "short.txt", "-o", "c.gguf", cwd=tmp_path).failed(2, "the text has")
    llmrun("imatrix").failed(2, "no model")


def test_auto_makes_a_matrix_once(tiny: Path, tmp_path: Path, home: Path) -> None:
    done = llmrun("quantize", tiny, "IQ2_XXS", tmp_path / "o.gguf", "--imatrix", "auto")
    assert done.status == 0, done.err
    assert "the model writes one for the importance matrix" in done.err
    assert len(list((home / "cache" / "imatrix").glob("*.gguf"))) == 1
    again = llmrun("quantize", tiny, "IQ2_XXS", tmp_path / "o2.gguf", "--imatrix", "auto")
    assert again.status == 0
    assert "writes" not in again.err
    assert (tmp_path / "o.gguf").read_bytes() == (tmp_path / "o2.gguf").read_bytes()


class _OnceBegun(Quiet):
    """Asks for a stop as soon as a matrix has chunks."""

    begun = False

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        self.begun |= task == "imatrix" and done > 2


def test_an_interrupted_auto_matrix_is_never_taken_for_the_whole(tiny: Path, home: Path) -> None:
    report, folder = _OnceBegun(), home / "cache" / "imatrix"
    with pytest.raises(Interrupted) as caught:
        auto_matrix(str(tiny), Source([tiny]), report, 1, lambda: report.begun)
    assert "goes on from there" in caught.value.hint
    assert [path.suffix for path in folder.iterdir()] == [".part"]
    resumed = auto_matrix(str(tiny), Source([tiny]), report, 1, lambda: False)
    assert any("going on from there" in note for note in report.notes)
    (kept,) = folder.iterdir()
    kept.unlink()
    whole = auto_matrix(str(tiny), Source([tiny]), report, 1, lambda: False)
    assert resumed.imatrix.n_chunks == whole.imatrix.n_chunks > 3
