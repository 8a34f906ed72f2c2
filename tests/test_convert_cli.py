"""`llmrun convert`: the command around it."""

import json
import os
from pathlib import Path

import pytest

from llmrun.prepare.checkpoint import converted, find_checkpoint
from llmrun.report import Quiet
from tests.checkpoints import checkpoint
from tests.cli import llmrun
from tests.gguf_digest import GgufFile
from tests.hub_pulls import mock_hub


def test_it_converts_and_says_what_came_of_it(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = llmrun("convert", checkpoint("llama_spm"), out, "--type", "q8_0")
    assert result.status == 0 and result.out == b"", result
    [line] = result.err.splitlines()
    assert line.startswith(f"{out}: ") and "llama Q8_0" in line and "16 Q8_0, 5 F32" in line and "/s" in line
    assert GgufFile(out).keys["general.file_type"][1] == 7


def test_json_is_one_object(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = llmrun("convert", checkpoint("llama_spm"), "-o", out, "--json", "--outtype", "f16")
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
    llmrun("convert", checkpoint("llama_spm"), "a.gguf", "-o", "b.gguf").failed(2, "named twice")
    llmrun("convert", "ollama:llama3").failed(2, "names no checkpoint")
    llmrun("convert", "some/repo:Q4_K_M").failed(2, "names a quant")


def test_a_repository_of_the_hub_is_fetched_and_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only what conversion reads; the file is named after the repository, and kept where it is made on the way."""
    source = checkpoint("llama_smollm")
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    monkeypatch.chdir(tmp_path)
    with mock_hub(monkeypatch, tmp_path) as hub:
        hub.add("SomeOrg/Tiny-SmolLM2-3M-Instruct", {**files, "pytorch_model.bin": b"x", "model.gguf": b"GGUF"})
        env = {name: os.environ[name] for name in ("HF_ENDPOINT", "HF_HOME")}
        result = llmrun("convert", "SomeOrg/Tiny-SmolLM2-3M-Instruct", "--type", "f16", env=env)
        assert result.status == 0, result.err
        out = tmp_path / "Tiny-SmolLM2-3M-Instruct-F16.gguf"
        assert GgufFile(out).keys["general.organization"][1] == "SomeOrg"
        fetched = {request.path.rpartition("/")[2] for request in hub.log if "/resolve/" in request.path}
        assert fetched == set(files)
        report = Quiet()
        found = find_checkpoint("SomeOrg/Tiny-SmolLM2-3M-Instruct", report)
        kept = converted(found, "q8_0", report)
        assert converted(found, "q8_0", report) == kept and GgufFile(kept).keys["general.file_type"][1] == 7
        assert sum("it is kept" in note for note in report.notes) == 1
