"""Perplexity and divergence: against plain softmax by hand, and against llama-perplexity's figures."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from llmrun.engine.batch import Batch
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import UsageError
from llmrun.evals.comparison import Row, mark_best
from llmrun.evals.divergence import measure_divergence, score
from llmrun.evals.perplexity import measure_perplexity
from llmrun.quant.call import Wish
from llmrun.quant.quantize import Source, quantize
from llmrun.report import Quiet
from tests.cli import llmrun
from tests.stored_logits import rounded_score
from tests.tiny import tiny_gguf

TEXT = "".join(f"{i} and {i * i}, the tin in the inn. " for i in range(60))
# The first part of the GNU General Public License 3, as Debian's base-files carries it; verbatim copies are allowed.
LICENCE = Path(__file__).parent / "data" / "gpl-3-head.txt.xz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evals")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return tiny_gguf(folder / "tiny.gguf", n_embd=256, n_ff=512)


@pytest.fixture(scope="module")
def q4(folder: Path, tiny: Path) -> Path:
    return quantize(Source([tiny]), folder / "q4.gguf", Wish("Q4_0"), None, Quiet()).paths[0]


def logs_one_by_one(path: Path, n_ctx: int) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities and targets of the second half of each chunk, token by token in one sequence."""
    rows, targets = [], []
    with Model.load(path, ModelSettings()) as model:
        tokens = model.vocab.tokenize(TEXT)
        for at in range(0, len(tokens) // n_ctx * n_ctx, n_ctx):
            with Context(model, ContextSettings(256)) as context:
                batch = Batch(1)
                for pos in range(n_ctx - 1):
                    batch.clear()
                    batch.add([tokens[at + pos]], pos, 0, last_logits=True)
                    context.decode(batch)
                    if pos >= n_ctx // 2:
                        logits = np.array(context.logits(0)[: model.vocab.n_tokens], dtype=np.float64)
                        rows.append(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
                        targets.append(tokens[at + pos + 1])
                batch.close()
    return np.array(rows), np.array(targets)


def test_perplexity_is_that_of_plain_decoding(tiny: Path) -> None:
    logs, targets = logs_one_by_one(tiny, 64)
    nll = -logs[np.arange(len(targets)), targets]
    with Model.load(tiny, ModelSettings()) as model:
        found = measure_perplexity(model, TEXT, report=Quiet(), n_threads=1, n_ctx=64)
    assert found.n_tokens == len(targets) == found.n_chunks * 31
    assert found.perplexity.value == pytest.approx(np.exp(nll.mean()), rel=1e-3)
    error = np.exp(nll.mean()) * nll.std() / np.sqrt(len(nll) - 1)
    assert found.perplexity.error == pytest.approx(error, rel=1e-2)


def test_divergence_is_that_of_plain_decoding(tiny: Path, q4: Path) -> None:
    base, targets = logs_one_by_one(tiny, 64)
    logs, _ = logs_one_by_one(q4, 64)
    kld = (np.exp(base) * (base - logs)).sum(axis=1)
    with Model.load(tiny, ModelSettings()) as reference, Model.load(q4, ModelSettings()) as model:
        found = measure_divergence(model, reference, TEXT, report=Quiet(), n_threads=1, n_ctx=64)
        same = measure_divergence(reference, reference, TEXT, report=Quiet(), n_threads=1, n_ctx=64, n_chunks=3)
    assert found.kld_mean.value == pytest.approx(kld.mean(), rel=1e-2)
    assert found.kld_median == pytest.approx(np.median(kld), rel=2e-2)
    assert found.kld_p99 == pytest.approx(np.quantile(kld, 0.99), rel=2e-2)
    rows = np.arange(len(targets))
    change = np.exp(logs[rows, targets]) - np.exp(base[rows, targets])
    assert found.delta_p_rms == pytest.approx(np.sqrt((change**2).mean()), rel=2e-2)
    assert found.same_top.value == pytest.approx((logs.argmax(axis=1) == base.argmax(axis=1)).mean(), abs=0.02)
    assert abs(same.kld_mean.value) < 1e-9
    assert same.same_top.value == 1.0
    assert same.ratio.value == 1.0


def test_scores_of_two_known_distributions() -> None:
    half, skewed = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    found = score(skewed, half, np.array([1]))
    assert found.kld[0] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert found.delta_p[0] == pytest.approx(0.25)
    assert found.nll[0] == pytest.approx(-np.log(0.75))
    assert not found.same[0]


def sharp(name: str, array: np.ndarray) -> np.ndarray:
    """Logits that spread over more than the 16 that llama-perplexity keeps."""
    return array * 6 if name == "output.weight" else array


def coarse(name: str, array: np.ndarray) -> np.ndarray:
    array = sharp(name, array)
    if not name.startswith("blk.") or array.ndim != 2:
        return array
    step = np.float32(np.abs(array).max() / 8)
    return np.round(array / step) * step


def test_figures_are_those_of_llama_perplexity(folder: Path) -> None:
    """What the program says of these two files and TEXT with -c 64, once its own rounding of the reference is done
    here too. In F32, so that another machine's instruction set does not round activations to another step."""
    files = [
        tiny_gguf(folder / f"{make.__name__}.gguf", n_embd=256, n_ff=512, tensors=make) for make in (sharp, coarse)
    ]
    with Model.load(files[0], ModelSettings()) as reference, Model.load(files[1], ModelSettings()) as model:
        alone = measure_perplexity(reference, TEXT, report=Quiet(), n_threads=1, n_ctx=64).perplexity
        exact, rounded = (
            measure_divergence(model, reference, TEXT, report=Quiet(), n_threads=1, n_ctx=64, scoring=scoring)
            for scoring in (score, rounded_score)
        )
    assert (alone.value, alone.error) == pytest.approx((13775753.9155, 3792470.03808), rel=1e-3)
    assert exact.reference_perplexity == alone
    assert rounded.reference_perplexity.value == pytest.approx(1053771.654, rel=1e-3)
    assert (rounded.perplexity.value, rounded.ratio.value) == pytest.approx((10690412.23, 10.144904), rel=1e-3)
    assert (rounded.kld_mean.value, rounded.kld_p99) == pytest.approx((0.407161, 1.722707), rel=5e-3)
    assert (rounded.kld_median, rounded.kld_max) == pytest.approx((0.320086, 1.900827), rel=1e-2)
    assert rounded.kld_mean.error == pytest.approx(0.015404, rel=1e-2)
    assert (rounded.delta_p_rms, rounded.same_top.value) == pytest.approx((0.01594, 0.65705), rel=1e-2)
    assert exact.kld_mean.value == pytest.approx(rounded.kld_mean.value, rel=1e-3)


def test_long_chunks_go_in_several_batches(tiny: Path) -> None:
    text = TEXT * 5
    with Model.load(tiny, ModelSettings()) as model:
        found = measure_perplexity(model, text, report=Quiet(), n_threads=1, n_ctx=2560)
        n_tokens = len(model.vocab.tokenize(text))
    assert found.n_chunks == n_tokens // 2560 >= 2
    assert found.n_tokens == found.n_chunks * 1279


def test_the_real_model_reads_the_licence(smollm2: Path) -> None:
    text = lzma.decompress(LICENCE.read_bytes()).decode()
    with Model.load(smollm2, ModelSettings()) as model:
        found = measure_perplexity(model, text, report=Quiet(), n_threads=1, n_ctx=128, n_chunks=2)
    assert 5 < found.perplexity.value < 40


def test_what_cannot_be_measured_is_refused(tiny: Path, folder: Path) -> None:
    other = tiny_gguf(folder / "other.gguf", n_vocab=300)
    with Model.load(tiny, ModelSettings()) as model, Model.load(other, ModelSettings()) as stranger:
        with pytest.raises(UsageError, match="the text has 2 tokens"):
            measure_perplexity(model, "hi", report=Quiet(), n_threads=1, n_ctx=64)
        with pytest.raises(UsageError, match="different tokens"):
            measure_divergence(model, stranger, TEXT, report=Quiet(), n_threads=1, n_ctx=64)
        with pytest.raises(UsageError, match="halved"):
            measure_perplexity(model, TEXT, report=Quiet(), n_threads=1, n_ctx=7)


def row(name: str, size: int, loss: float) -> Row:
    return Row(name, name, "Q4_0", size, 4.5, loss, 0.1, None, 1.0, 1.0)


def test_marks_what_none_beats() -> None:
    rows = mark_best([row("a", 10, 5.0), row("b", 20, 4.0), row("c", 20, 4.5), row("d", 30, 4.0), row("e", 10, 5.0)])
    assert {one.name for one in rows if one.best} == {"a", "b", "e"}


def test_the_commands(tiny: Path, q4: Path, folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    common = ("-f", folder / "text.txt", "-c", 64, "-t", 1)
    plain = llmrun("perplexity", q4, *common)
    assert plain.status == 0, plain.err
    assert "perplexity " in plain.text
    assert "±" in plain.text
    compared = json.loads(llmrun("perplexity", q4, "--reference", tiny, *common, "--json").text)
    assert compared["kld_mean"]["value"] > 0
    table = json.loads(llmrun("report", q4, tiny, "--reference", tiny, *common, "--json").text)
    assert [one["best"] for one in table["rows"]] == [True, True]
    assert table["rows"][1]["divergence"]["kld_mean"]["value"] == pytest.approx(0, abs=1e-9)
    assert all(one["decode_tps"] > 0 for one in table["rows"])
    shown = llmrun("report", q4, *common)
    assert "beaten by none" in shown.text
    llmrun("perplexity", q4, "-f", folder / "gone.txt").failed(1, "no such file")
    llmrun("report").failed(2, "no model to report on")


def test_a_picture(tiny: Path, q4: Path, folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    words = ("report", q4, tiny, "-f", folder / "text.txt", "-c", 64, "-t", 1, "--plot", folder / "p.png")
    done = llmrun(*words)
    assert done.status == 0, done.err
    assert (folder / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
