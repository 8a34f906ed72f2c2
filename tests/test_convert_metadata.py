"""general.* keys: the model card and generation_config.json, however odd they are."""

from pathlib import Path
from typing import Any

import pytest

from llmrun.convert.pipeline import convert
from llmrun.report import Quiet
from tests.checkpoints import copied, edit_json
from tests.gguf_digest import GgufFile


def general(folder: Path, report: Quiet | None = None) -> dict[str, Any]:
    out = folder.parent / "out.gguf"
    convert(folder, out, force=True, report=report or Quiet())
    keys = GgufFile(out).keys.items()
    return {key.removeprefix("general."): value for key, (_, value) in keys if key.startswith("general.")}


def test_a_card_s_values_of_other_kinds_are_written_as_text(tmp_path: Path) -> None:
    """The reference stops on a version that YAML reads as a number."""
    folder = copied("llama_spm", tmp_path)
    card = (
        "---\nversion: 1.0\nlicense: mit\ntags: [a, 3, null, 2024-01-02]\nlanguage:\n- no\n- en\nauthor: true\n---\n"
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    keys = general(folder)
    assert keys["version"] == "1.0" and keys["author"] == "True" and keys["license"] == "mit"
    assert keys["tags"] == ["a", "3", "2024-01-02"]
    assert keys["languages"] == ["no", "en"]


@pytest.mark.parametrize("card", ["---\n- [\n---\n", "---\na: &a [*a]\n---\n", "---\n? {\n---\n"])
def test_a_card_that_is_no_yaml_is_noted(card: str, tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    (folder / "README.md").write_text(card, encoding="utf-8")
    report = Quiet()
    assert general(folder, report)["name"] == "Tiny Llama 1M Chat v1.0"
    assert len(report.notes) == 1 and "README.md" in report.notes[0]


@pytest.mark.parametrize("card", ["", "# no head", "---\n", "---\n---\n", "---\n3\n---\n", "\xff\n"])
def test_a_card_without_a_head_says_nothing(card: str, tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    (folder / "README.md").write_bytes(card.encode("latin-1"))
    report = Quiet()
    assert "license" not in general(folder, report) and report.notes == []


def test_sampling_settings_of_the_wrong_kind_are_left_out(tmp_path: Path) -> None:
    folder = copied("llama_spm", tmp_path)
    edit_json(folder / "generation_config.json", top_k=20.5, temperature="hot", top_p=0.5, min_p=True)
    report = Quiet()
    keys = general(folder, report)
    assert {key for key in keys if key.startswith("sampling")} == {"sampling.top_p"}
    assert len(report.notes) == 3
