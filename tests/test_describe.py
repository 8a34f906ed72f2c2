"""Everything a header says, of files here and at their source."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.cli.output import jsonable
from llmrun.errors import ModelFileError, NotFoundError
from llmrun.models.catalog import load_catalog
from llmrun.models.describe import Array, Description, describe
from llmrun.models.headers import read_headers
from llmrun.models.resolve import resolve
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.hub_server import Hub
from tests.tiny import tiny_gguf


def show(text: str) -> Description:
    resolved = resolve(text, load_catalog(), Store(), Quiet())
    return describe(resolved, read_headers(resolved, Quiet()))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield hub


def test_a_file_here(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", qtype="Q8_0", metadata={"general.license": "mit"})
    shown = show(str(path))
    assert (shown.is_here, shown.kind, shown.licence, shown.missing_bytes) == (True, "a model", "mit", 0)
    assert shown.paths == (str(path),) and shown.size_bytes == path.stat().st_size
    assert sum(row.n_tensors for row in shown.tensor_types) == len(shown.tensors)
    assert sum(row.n_bytes for row in shown.tensor_types) == sum(tensor.n_bytes for tensor in shown.tensors)
    assert {row.type for row in shown.tensor_types} == {"Q8_0", "F32"}
    tokens = shown.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Array) and tokens.type == "string" and len(tokens.first) == 8
    assert tokens.length == shown.info.n_vocab
    assert shown.metadata["general.architecture"] == "llama"
    json.dumps(jsonable(shown), allow_nan=False)


def test_a_file_that_was_cut_off_still_shows_its_header(tmp_path: Path) -> None:
    """GGUF-02."""
    path = tiny_gguf(tmp_path / "tiny.gguf")
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1000])
    shown = show(str(path))
    assert shown.missing_bytes > 0 and shown.size_bytes == whole - 1000


def test_a_file_on_the_hub_is_read_without_its_weights(hub: Hub, tmp_path: Path) -> None:
    data = tiny_gguf(tmp_path / "tiny.gguf", n_layer=8, n_embd=256, n_ff=1024).read_bytes()
    hub.add("mock/repo", {"m-Q4_K_M.gguf": data, "mmproj.gguf": data})
    shown = show("mock/repo")
    assert (shown.name, shown.source, shown.is_here) == ("mock/repo", "mock/repo:Q4_K_M", False)
    assert shown.size_bytes == len(data) and shown.paths == ()
    assert len(data) > 20_000_000 and sum(request.sent for request in hub.log) < 3_000_000
    local = show(str(tmp_path / "tiny.gguf"))
    assert shown.tensors == local.tensors and shown.metadata == local.metadata
    assert not (tmp_path / "hf").exists()


def test_what_cannot_be_shown_before_it_is_pulled() -> None:
    with pytest.raises(NotFoundError) as caught:
        show("smollm2")
    assert caught.value.hint == "llmrun pull smollm2"


def test_a_checkpoint_has_no_header(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelFileError, match="has to be converted first"):
        show(str(tmp_path))
