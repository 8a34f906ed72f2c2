"""Real weights: the small model as a Hugging Face folder, converted back."""

import runpy
from pathlib import Path

import pytest

from llmrun.convert.pipeline import convert
from llmrun.engine.batch import Batch
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.model import Model, ModelSettings
from llmrun.gguf.header import open_header
from llmrun.report import Quiet
from tests.gguf_digest import GgufFile

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(scope="module")
def back(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model through a checkpoint folder in F16 and back."""
    folder = tmp_path_factory.mktemp("checkpoints") / "SmolLM2-135M-Instruct"
    runpy.run_path(str(SCRIPTS / "make-test-checkpoint"))["make_checkpoint"](smollm2, folder)
    out = folder.parent / "back.gguf"
    convert(folder, out, report=Quiet())
    (folder / "model.safetensors").unlink()
    return out


def test_the_tokenizer_survives(smollm2: Path, back: Path) -> None:
    first, second = open_header(smollm2).metadata, open_header(back).metadata
    for key in ("model", "pre", "bos_token_id", "eos_token_id"):
        assert first[f"tokenizer.ggml.{key}"] == second[f"tokenizer.ggml.{key}"]
    for key in ("tokens", "token_type", "merges"):
        assert list(first[f"tokenizer.ggml.{key}"]) == list(second[f"tokenizer.ggml.{key}"])
    assert first["tokenizer.chat_template"] == second["tokenizer.chat_template"]


def test_greedy_text_is_that_of_the_dequantized_original(smollm2: Path, back: Path, tmp_path: Path) -> None:
    original = dequantized(smollm2, tmp_path / "original.gguf")
    prompt = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    ids = greedy(back, prompt, 48)
    assert ids == greedy(original, prompt, 48)
    assert len(set(ids)) > 20  # a text, not one token over and over


def dequantized(model: Path, out: Path) -> Path:
    """The original with every quantized tensor as F16, made by llama.cpp itself."""
    from llmrun.engine import capi

    lib = capi.lib()
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = 1, True, 2
    assert lib.llama_model_quantize(str(model).encode(), str(out).encode(), params) == 0
    return out


def greedy(path: Path, prompt: str, n: int) -> list[int]:
    found: list[int] = []
    settings = ContextSettings(256, n_threads=2, flash_attn="off")
    with Model.load(path, ModelSettings(gpu_layers=0)) as model, Context(model, settings) as context:
        ids = model.vocab.tokenize(prompt, add_special=True, parse_special=True)
        batch, at = Batch(256), 0
        while len(found) < n:
            batch.clear()
            last = batch.add(ids, at, 0, last_logits=True)
            assert context.decode(batch) == 0
            row = context.logits(last)[: model.vocab.n_tokens]
            at += len(ids)
            ids = [max(range(len(row)), key=row.__getitem__)]
            found += ids
        batch.close()
    return found


def test_the_weights_are_those_of_the_dequantized_original(smollm2: Path, back: Path, tmp_path: Path) -> None:
    """Bit for bit: dequantizing and rounding to F16 is all that happened on the way."""
    first, second = GgufFile(dequantized(smollm2, tmp_path / "original.gguf")), GgufFile(back)
    assert sorted(tensor.name for tensor in first.tensors) == sorted(tensor.name for tensor in second.tensors)
    for tensor in second.tensors:
        if tensor.type == "F16" and tensor.name.startswith(("blk.7.", "token_embd")):
            assert bytes(first.tensor(tensor.name)[1]) == bytes(second.tensor(tensor.name)[1]), tensor.name
