"""A checkpoint given to any command is converted, and quantized, on the way, once."""

import json
import os
from pathlib import Path

from llmrun.gguf.header import open_header
from llmrun.gguf.info import model_info
from tests.checkpoints import copied
from tests.cli import llmrun


def kept() -> list[Path]:
    return sorted((Path(os.environ["LLMRUN_HOME"]) / "cache" / "converted").glob("*.gguf"))


def test_run_converts_and_quantizes_a_folder_once(tmp_path: Path) -> None:
    folder = copied("llama_smollm", tmp_path)
    args = ("run", folder, "hi", "-n", 3, "--ignore-eos", "-t", 1, "--temp", 0, "--json")
    first = llmrun(*args)
    assert first.status == 0, first.err
    assert "converted and quantized to Q4_K_M" in first.err
    (model,) = kept()  # what it was quantized from is not kept
    info = model_info(open_header(model))
    assert (info.arch, info.quant) == ("llama", "Q4_K_M")
    second = llmrun(*args)
    assert "convert" not in second.err
    assert json.loads(first.text)["text"] == json.loads(second.text)["text"]
    assert kept() == [model]


def test_a_changed_checkpoint_is_converted_again(tmp_path: Path) -> None:
    folder = copied("llama_smollm", tmp_path)
    args = ("tokenize", folder, "--count", "hi")
    assert llmrun(*args).status == 0
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}), encoding="utf-8")
    assert "convert" in llmrun(*args).err
    assert len(kept()) == 2


def test_quantize_takes_a_checkpoint_in_full_precision(tmp_path: Path) -> None:
    folder = copied("llama_smollm", tmp_path)
    out = tmp_path / "out.gguf"
    done = llmrun("quantize", folder, "Q8_0", out)
    assert done.status == 0, done.err
    assert model_info(open_header(out)).quant == "Q8_0"
    (source,) = kept()
    assert model_info(open_header(source)).quant == "F16"


def test_a_checkpoint_that_cannot_be_converted_is_said_in_one_line(tmp_path: Path) -> None:
    folder = copied("llama_smollm", tmp_path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["NobodyForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    llmrun("run", folder, "hi").failed(1, "NobodyForCausalLM")
    assert kept() == []
