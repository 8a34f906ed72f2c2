"""ollama's models, read where they are."""

import json
from pathlib import Path

import pytest

from llmrun.errors import NotFoundError
from llmrun.models.refs import parse_ref, ref_text
from llmrun.models.sources import Want, ollama
from llmrun.models.store import Store
from tests.ollama_store import LIBRARY, add_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ollama"
    add_model(folder, f"{LIBRARY}/llama3.2", "latest", b"GGUF latest")
    add_model(folder, f"{LIBRARY}/llama3.2", "3b", b"GGUF 3b")
    add_model(folder, "registry.ollama.ai/someone/tiny", "q4_0", b"GGUF tiny")
    add_model(folder, "hf.co/Org/Repo-GGUF", "Q4_K_M", b"GGUF hub")
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    return folder


def find(text: str) -> bytes:
    (path,) = ollama.locate(Want(text, parse_ref(text)), Store()).paths
    return path.read_bytes()


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("ollama:llama3.2", b"GGUF latest"),
        ("ollama:llama3.2:3b", b"GGUF 3b"),
        ("ollama:library/llama3.2:3b", b"GGUF 3b"),
        ("ollama:Llama3.2:3B", b"GGUF 3b"),
        ("ollama:someone/tiny:q4_0", b"GGUF tiny"),
        ("ollama:hf.co/org/repo-gguf:q4_k_m", b"GGUF hub"),
        ("ollama:registry.ollama.ai/someone/tiny:q4_0", b"GGUF tiny"),
    ],
)
def test_names_as_ollama_takes_them(text: str, data: bytes, folder: Path) -> None:
    assert find(text) == data


def test_in_the_users_own_folder(home: Path) -> None:
    add_model(Path.home() / ".ollama/models", f"{LIBRARY}/m", "latest", b"GGUF own")
    assert find("ollama:m") == b"GGUF own"


def test_what_is_not_here_names_what_is(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"ollama has no llama3\.2:1b here") as caught:
        find("ollama:llama3.2:1b")
    assert "ollama:llama3.2:3b" in caught.value.hint
    with pytest.raises(NotFoundError):
        find("ollama:llama3.2/x:1b")


def test_without_ollama(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    with pytest.raises(NotFoundError):
        find("ollama:m")
    assert list(ollama.list_models()) == []


def test_list(folder: Path) -> None:
    assert [ref_text(model.ref) for model in ollama.list_models()] == [
        "ollama:hf.co/Org/Repo-GGUF:Q4_K_M",
        "ollama:llama3.2:3b",
        "ollama:llama3.2:latest",
        "ollama:someone/tiny:q4_0",
    ]


def test_half_pulled_and_hostile_manifests_are_passed_over(folder: Path) -> None:
    latest = folder / "manifests" / LIBRARY / "llama3.2" / "latest"
    layers = json.loads(latest.read_text())
    blob = folder / "blobs" / layers["layers"][0]["digest"].replace(":", "-")
    blob.write_bytes(b"GG")
    layers["layers"][0]["digest"] = "sha256:../../../../etc/passwd"
    add_model(folder, f"{LIBRARY}/evil", "latest", b"GGUF").write_text(json.dumps(layers))
    (folder / "manifests" / LIBRARY / "cut").mkdir()
    (folder / "manifests" / LIBRARY / "cut" / "latest").write_text("{")
    assert [model.ref.tag for model in ollama.list_models()] == ["Q4_K_M", "3b", "q4_0"]
    for name in ("llama3.2", "evil", "cut"):
        with pytest.raises(NotFoundError):
            find(f"ollama:{name}")
