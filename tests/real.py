"""Where the real models are that some tests need."""

import os
from pathlib import Path

import pytest


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, in the folder that LLMRUN_TEST_MODELS names."""
    return _model("smollm2.gguf")


def gemma3_path() -> Path:
    """Gemma 3 270M (base) Q4_K_M, beside it."""
    return _model("gemma3-270m.gguf")


def _model(name: str) -> Path:
    folder = os.environ.get("LLMRUN_TEST_MODELS")
    path = Path(folder or ".") / name
    if not folder or not path.is_file():
        pytest.skip(f"LLMRUN_TEST_MODELS names no folder with {name}")
    return path
