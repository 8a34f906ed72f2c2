"""What the tests of hub models share: a hub with one repo, and pulls from it."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmrun.errors import LlmrunError
from llmrun.models import download, http
from llmrun.models.refs import parse_ref
from llmrun.models.sources import Found, Want, hf, hf_cache
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.hub_server import Hub


def model(seed: int, size: int = 40_000) -> bytes:
    return b"GGUF" + random.Random(seed).randbytes(size)


QUANTS = {f"m-{quant}.gguf": model(n) for n, quant in enumerate(("Q4_K_M", "Q4_K_S", "Q8_0"))}
README = b"# A model\n"
CHECKPOINT = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": model(1),
    "model-00002-of-00002.safetensors": model(2),
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{ }",
    "README.md": README,
    "consolidated.safetensors": model(3),
    "onnx/model.onnx": model(4),
    "pytorch_model.bin": model(5),
}


@contextmanager
def mock_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """Named by HF_ENDPOINT, with mock/repo on it; an empty cache under `folder`; retries that do not wait."""
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(http, "SHORT_WAITS_S", (0.0, 0.0))
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(folder / "hf"))
        hub.add("mock/repo", QUANTS | {"README.md": README, "mmproj-F16.gguf": model(9)})
        yield hub


def want(text: str, **more: object) -> Want:
    return Want(text, parse_ref(text), **more)  # type: ignore[arg-type]


def pull(text: str, report: Quiet | None = None, **more: object) -> Found:
    return hf.fetch(want(text, **more), Store(), report or Quiet())


def snapshot(hub: Hub, repo: str = "mock/repo") -> Path:
    return hf_cache.repo_folder(repo) / "snapshots" / hub.repos[repo].commit


def failure(text: str) -> LlmrunError:
    with pytest.raises(LlmrunError) as caught:
        pull(text)
    assert "hf_secret" not in f"{caught.value.message} {caught.value.hint} {caught.value!r}"
    return caught.value


def leftovers() -> list[str]:
    folder = hf_cache.cache_dir()
    return [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
