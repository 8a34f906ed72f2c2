"""Fixtures for all tests: a tiny model, the real one, and a clean home for each test."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import remove_fixtures
from tests.real import gemma3_path, smollm2_path
from tests.tiny import tiny_gguf

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C and so would every program the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_OURS = ("LLMRUN_", "LLAMA_ARG_", "HF_", "HUGGINGFACE_", "OLLAMA_", "XDG_")
_TERMINAL = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLUMNS", "LINES")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary LLMRUN_HOME and home directory; no setting of the person who runs the tests leaks in."""
    for name in list(os.environ):
        if (name.startswith(_OURS) and name != "LLMRUN_TEST_MODELS") or name in _TERMINAL:
            monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("LLMRUN_HOME", str(folder / "llmrun"))
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(folder))
    return folder / "llmrun"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 2 layers with a ChatML template. Shared: do not write to it."""
    return tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real default model."""
    return smollm2_path()


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """A real model whose layers slide, but for every sixth."""
    return gemma3_path()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a disk of 8 MB takes root on Linux")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session", autouse=True)
def carried_checkpoints() -> Iterator[None]:
    """Unpacked where a test asks for one, and gone when the tests are over."""
    yield
    remove_fixtures()
