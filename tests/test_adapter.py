"""LoRA adapters against the same change made to the weights themselves."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from llmrun.engine.adapter import Lora, apply_adapters, check_adapter
from llmrun.engine.batch import Batch
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.model import Model, ModelSettings
from llmrun.errors import ModelFileError
from llmrun.gguf.header import open_header
from tests.cli import llmrun
from tests.tiny import tiny_gguf

WEIGHT = "blk.0.ffn_up.weight"
RANK, ALPHA = 4, 8.0
PROMPT = list(b"some text")


def write_adapter(path: Path, a: np.ndarray, b: np.ndarray, *, arch: str = "llama", name: str = WEIGHT) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    writer.add_tensor(f"{name}.lora_a", a)
    writer.add_tensor(f"{name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def last_logits(path: Path, adapters: tuple[Lora, ...]) -> np.ndarray:
    settings = ContextSettings(256, kv_type=("f32", "f32"))
    with Model.load(path, ModelSettings()) as model, Context(model, settings) as context:
        apply_adapters(context, adapters)
        batch = Batch(64)
        index = batch.add(PROMPT, 0, 0, last_logits=True)
        context.decode(batch)
        found = np.ctypeslib.as_array(context.logits(index), shape=(model.vocab.n_tokens,)).copy()
        batch.close()
        return found


@pytest.fixture(scope="module")
def low_rank() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return (
        rng.normal(size=(RANK, 64)).astype(np.float32) * 0.1,
        rng.normal(size=(128, RANK)).astype(np.float32) * 0.1,
    )


@pytest.mark.parametrize("scale", [1.0, 0.5, -1.0])
def test_an_adapter_equals_the_weights_changed_by_it(
    tmp_path: Path, low_rank: tuple[np.ndarray, np.ndarray], scale: float
) -> None:
    a, b = low_rank
    adapter = write_adapter(tmp_path / "lora.gguf", a, b)
    base = tiny_gguf(tmp_path / "base.gguf")
    change = scale * ALPHA / RANK * (b @ a)
    merged = tiny_gguf(tmp_path / "merged.gguf", tensors=lambda name, w: w + change if name == WEIGHT else w)
    with_adapter = last_logits(base, (Lora(adapter, scale),))
    assert np.abs(with_adapter - last_logits(merged, ())).max() < 1e-4
    assert np.abs(with_adapter - last_logits(base, ())).max() > 1e-2


def test_two_adapters_add_up(tmp_path: Path, low_rank: tuple[np.ndarray, np.ndarray]) -> None:
    adapter = write_adapter(tmp_path / "lora.gguf", *low_rank)
    base = tiny_gguf(tmp_path / "base.gguf")
    same = write_adapter(tmp_path / "same.gguf", *low_rank)
    twice = last_logits(base, (Lora(adapter, 0.5), Lora(same, 0.5)))
    assert np.abs(twice - last_logits(base, (Lora(adapter, 1.0),))).max() < 1e-4


def test_what_is_no_adapter_for_this_model_is_refused(
    tmp_path: Path, tiny_model: Path, low_rank: tuple[np.ndarray, np.ndarray]
) -> None:
    a, b = low_rank
    base = open_header(tiny_model)
    other = write_adapter(tmp_path / "o.gguf", a, b, arch="qwen2")
    wide = write_adapter(tmp_path / "w.gguf", np.zeros((RANK, 96), np.float32), b)
    stray = write_adapter(tmp_path / "s.gguf", a, b, name="blk.9.ffn_up.weight")
    for path, words in (
        (other, "qwen2"),
        (wide, "does not fit"),
        (stray, "does not fit"),
        (tiny_model, "not a LoRA"),
    ):
        with pytest.raises(ModelFileError, match=words):
            check_adapter(open_header(path), base, path)


def test_the_command_line_takes_adapters_with_a_scale(
    tmp_path: Path, tiny_model: Path, low_rank: tuple[np.ndarray, np.ndarray]
) -> None:
    adapter = write_adapter(tmp_path / "lora.gguf", low_rank[0] * 30, low_rank[1] * 30)
    args = ("run", tiny_model, "hi", "--temp", 0, "-n", 8, "--ignore-eos", "-t", 1)
    plain = llmrun(*args).out
    assert llmrun(*args, "--lora", f"{adapter}:0").out == plain
    assert llmrun(*args, "--lora", adapter).out != plain
    llmrun(*args, "--lora", tmp_path / "none.gguf").failed(2, "no adapter file")
    llmrun(*args, "--lora", tiny_model).failed(1, "not a LoRA adapter")
