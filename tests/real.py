"""Where the real models are that some tests need."""

import os
from pathlib import Path

import pytest


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, in the folder that LLMRUN_TEST_MODELS names."""
    folder = os.environ.get("LLMRUN_TEST_MODELS")
    path = Path(folder or ".") / "smollm2.gguf"
    if not folder or not path.is_file():
        pytest.skip("LLMRUN_TEST_MODELS names no folder with smollm2.gguf")
    return path
