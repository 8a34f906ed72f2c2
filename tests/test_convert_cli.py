"""`llmrun convert`: the command around it."""

import json
from pathlib import Path

from tests.checkpoints import checkpoint
from tests.cli import llmrun
from tests.gguf_digest import GgufFile


def test_it_converts_and_says_what_came_of_it(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = llmrun("convert", checkpoint("llama_spm"), out, "--type", "q8_0")
    assert result.status == 0 and result.out == b"", result
    [line] = result.err.splitlines()
    assert line.startswith(f"{out}: ") and "llama Q8_0" in line and "16 Q8_0, 5 F32" in line and "/s" in line
    assert GgufFile(out).keys["general.file_type"][1] == 7


def test_json_is_one_object(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = llmrun("convert", checkpoint("llama_spm"), out, "--json", "--outtype", "f16")
    found = json.loads(result.out)
    assert found["path"] == str(out) and found["size_bytes"] == out.stat().st_size
    assert found["tensors"] == {"F16": 16, "F32": 5}
    assert {"seconds", "arch", "file_type", "notes", "n_params"} <= found.keys()
    assert result.err == ""


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    result = llmrun("convert", checkpoint("llama_smollm"), tmp_path, "--dry-run")
    assert result.status == 0 and list(tmp_path.iterdir()) == []
    assert "LlamaForCausalLM -> llama" in result.text and "gpt2 smollm, 49152 tokens" in result.text
    found = json.loads(llmrun("convert", checkpoint("llama_smollm"), tmp_path, "--dry-run", "--json").out)
    assert found["pre"] == "smollm" and found["n_tensors"] == 20 and found["n_shards"] == 2


def test_quiet_says_nothing(tmp_path: Path) -> None:
    result = llmrun("convert", checkpoint("llama_spm"), tmp_path / "out.gguf", "-q")
    assert (result.status, result.out, result.err) == (0, b"", "")


def test_faults_are_one_line_and_a_hint(tmp_path: Path) -> None:
    llmrun("convert", tmp_path).failed(1, "config.json is missing", "hint: a checkpoint folder holds")
    llmrun("convert").failed(2, "missing argument")
    llmrun("convert", checkpoint("llama_spm"), "--type", "q4_0").failed(2, "--type q4_0 is none of auto, f32")
    llmrun("convert", "ollama:llama3").failed(2, "names no checkpoint")
    llmrun("convert", "some/repo:Q4_K_M").failed(2, "names a quant")
