"""The tiny models that other tests stand on: deterministic, loadable, text round-trips."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_gguf

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mha": {"n_head_kv": 4},
    "mqa": {"n_head_kv": 1},
    "tied": {"tied": True},
    "moe": {"n_expert": 4},
    "qwen2": {"arch": "qwen2"},
    "qwen3": {"arch": "qwen3"},
    "gemma2": {"arch": "gemma2"},
    "gemma3": {"arch": "gemma3", "n_layer": 6},
    "bert": {"arch": "bert"},
    "no_template": {"template": None},
    "large_vocab": {"n_vocab": 1000},
    **{q: {"qtype": q} for q in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")},
}


def test_same_arguments_same_bytes(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    tiny_gguf(first, seed=3)
    tiny_gguf(again, seed=3)
    tiny_gguf(other, seed=4)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("variants")
    paths = [tiny_gguf(folder / f"{name}.gguf", **kwargs) for name, kwargs in VARIANTS.items()]
    done = subprocess.run(
        [sys.executable, "-m", "tests.load_model"],
        input="".join(f"{path}\n" for path in paths),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return dict(zip((Path(line.split(" ", 1)[1]).stem for line in lines[::2]), lines[1::2], strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp_loads_and_decodes(variant: str, answers: dict[str, str]) -> None:
    assert answers[variant].startswith("ok ")
