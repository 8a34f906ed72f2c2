"""The converter against llama.cpp's own: every key, every tensor's name, shape, type and bytes, in the same order.

Each archive holds a tiny checkpoint and what convert_hf_to_gguf.py made of it (scripts/make-convert-fixtures).
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from llmrun.convert.pipeline import convert
from llmrun.engine.batch import Batch
from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.model import Model, ModelSettings
from llmrun.report import Quiet
from tests.checkpoints import FIXTURES, checkpoint, expected
from tests.gguf_digest import GgufFile, array_digest, describe

TYPES = ("f32", "f16", "bf16", "auto", "q8_0")
# Keys that differ, and why.
MAY_DIFFER = {
    # The reference takes both from settings of tokenizer_config.json that say nothing of this tokenizer, and so
    # adds no space before a text: test_convert_vocab compares the ids with Hugging Face's.
    "xlm_roberta_json": {"tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"},
    # Its ids have holes, into which the tokenizers library puts four added tokens on ids that are taken; which
    # text the reference then writes changes from run to run. The test below says what is allowed.
    "qwen3": {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type"},
}


# Notes that a conversion to this type leaves.
SHORT_ROWS = "blk.0.ffn_down_exps.weight and 1 more: F16 instead of Q8_0, whose blocks their rows do not fill"
NOTES = {
    "gemma3_mm": {"the vision tower of the checkpoint is left out: this is its text model alone": TYPES},
    "qwen2_moe": {SHORT_ROWS: ("q8_0",)},
    "qwen3_moe": {SHORT_ROWS: ("q8_0",)},
}


def convert_fixture(name: str, type: str, out: Path) -> Path:
    report = Quiet()
    result = convert(checkpoint(name), out, type=type, pre=expected(name).get("pre"), force=True, report=report)
    assert report.notes == [note for note, types in NOTES.get(name, {}).items() if type in types]
    assert result.path == out and result.size_bytes == out.stat().st_size
    return out


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("name", FIXTURES)
def test_a_fixture_comes_out_as_the_reference_has_it(name: str, type: str, tmp_path: Path) -> None:
    found = describe(convert_fixture(name, type, tmp_path / "out.gguf"))
    wanted: dict[str, Any] = expected(name)["outtypes"][type]
    allowed = MAY_DIFFER.get(name, set())
    assert list(found["kv"]) == list(wanted["kv"])
    for key, value in wanted["kv"].items():
        if key in allowed:
            assert found["kv"][key]["type"] == value["type"]
        else:
            assert found["kv"][key] == value, key
    assert found["tensors"] == wanted["tensors"]
    assert (found["version"], found["alignment"]) == (wanted["version"], wanted["alignment"])
    if not allowed:
        assert found["file_size"] == wanted["file_size"]


def test_ids_that_two_tokens_share_are_written_one_way(tmp_path: Path) -> None:
    """The reference's five files differ in four ids; each is ours with some of these four the other way round."""
    file = GgufFile(convert_fixture("qwen3", "f16", tmp_path / "out.gguf"))
    tokens, types = (file.keys[f"tokenizer.ggml.{name}"][1] for name in ("tokens", "token_type"))
    vocab = json.loads((checkpoint("qwen3") / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    shared = {id: text for text, id in vocab.items() if tokens[id] != text}
    assert len(shared) == 4
    ways = set()
    for n in range(5):
        for other in itertools.combinations(shared, n):
            changed = [shared[id] if id in other else token for id, token in enumerate(tokens)]
            kinds = [1 if id in other else kind for id, kind in enumerate(types)]
            ways.add((array_digest(changed), array_digest(kinds)))
    for type in TYPES:
        keys = expected("qwen3")["outtypes"][type]["kv"]
        assert (keys["tokenizer.ggml.tokens"]["sha256"], keys["tokenizer.ggml.token_type"]["sha256"]) in ways


@pytest.mark.parametrize("name", [name for name in FIXTURES if expected(name)["oracle"]])
def test_llama_cpp_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    """transformers' float32 logits after the last of a few tokens, kept in the fixture."""
    oracle = expected(name)["oracle"]
    path = convert_fixture(name, "f32", tmp_path / "out.gguf")
    head = logits(path, oracle["ids"])
    scale = max(abs(value) for value in oracle["head"])
    # Llamas reach 5e-6; Gemmas scale embeddings by a rounded square root, and llama.cpp's GELU is an approximation.
    assert max(abs(a - b) for a, b in zip(head, oracle["head"], strict=False)) < 4e-3 * scale
    assert head.index(max(head)) == oracle["argmax"]


def logits(path: Path, ids: list[int]) -> list[float]:
    batch = Batch(len(ids))
    settings = ContextSettings(256, kv_type=("f32", "f32"), flash_attn="off")
    with Model.load(path, ModelSettings(gpu_layers=0)) as model, Context(model, settings) as context:
        last = batch.add(ids, 0, 0, last_logits=True)
        assert context.decode(batch) == 0
        found = list(context.logits(last)[: model.vocab.n_tokens])
    batch.close()
    return found
