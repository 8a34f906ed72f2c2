"""Names of the user's own."""

from pathlib import Path

import pytest

from llmrun.errors import NotFoundError, UsageError
from llmrun.models.aliases import Alias, is_bare, own_tables, remove_alias, write_alias
from llmrun.models.catalog import load_catalog, user_file
from llmrun.models.store import Store


def write(name: str, text: str, force: bool = False) -> Alias:
    return write_alias(name, text, load_catalog(), Store(), force)


def write_own(text: str) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(text, encoding="utf-8")


def test_a_name_is_written_and_found() -> None:
    assert write("fast", "org/repo:Q4_0") == Alias("fast", "org/repo:Q4_0", str(user_file()))
    write("qwen3.5", "hf.co/org/other")
    write("short", "SmolLM2")
    assert user_file().read_text() == (
        '[fast]\nsource = "org/repo:Q4_0"\n\n["qwen3.5"]\nsource = "org/other"\n\n[short]\nsource = "smollm2"\n'
    )
    entries = load_catalog().entries
    assert entries["fast"].sources == ("org/repo:Q4_0",) and entries["qwen3.5"].sources == ("org/other",)
    assert all(is_bare(table) for table in own_tables().values())


def test_the_rest_of_the_file_stays_as_it_is() -> None:
    mine = 'default = "fast"  # quick\n\n# my own\n[mine]\nsource = "org/repo" # here\ntemp = 0.5'
    write_own(mine)
    write("fast", "org/small")
    assert user_file().read_text() == f'{mine}\n\n[fast]\nsource = "org/small"\n'
    write_own(f'[fast]\nsource = "org/small"\n\n# quick\n{mine[26:]}\n')
    write("fast", "org/smaller", force=True)
    assert user_file().read_text() == f'# quick\n{mine[26:]}\n\n[fast]\nsource = "org/smaller"\n'
    write_own(f'{mine}\n\n[fast]\nsource = "org/smaller"\n')
    write("last", "org/last")
    remove_alias("fast")
    assert user_file().read_text() == f'{mine}\n\n[last]\nsource = "org/last"\n'
    assert not is_bare(own_tables()["mine"])


def test_a_file_is_written_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH-01."""
    folder = tmp_path / 'é "日本" (2)'
    folder.mkdir()
    (folder / "m q4.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(folder)
    assert write("mine", "./m q4.gguf").source == str(folder / "m q4.gguf")
    assert load_catalog().entries["mine"].sources == (str(folder / "m q4.gguf"),)


def test_a_name_that_is_taken_is_replaced_only_by_force() -> None:
    write("fast", "org/repo")
    with pytest.raises(UsageError, match="fast already stands for org/repo"):
        write("fast", "org/other")
    assert write("fast", "org/other", force=True).replaced == "org/repo"
    write("smollm2", "org/mine")
    assert load_catalog().entries["smollm2"].sources == ("org/mine",)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "./a", "default", "a:b", "m.gguf", "-a", "é", "a\nb", "hf:x"])
def test_what_can_be_no_name(name: str) -> None:
    with pytest.raises(UsageError):
        write(name, "org/repo")
    assert not user_file().exists()


@pytest.mark.parametrize("text", ["smolm2", "./none.gguf", "what is this", "fast"])
def test_what_leads_nowhere(text: str) -> None:
    with pytest.raises((UsageError, NotFoundError)):
        write("fast", text)
    assert not user_file().exists()


def test_a_file_that_cannot_be_edited_safely_is_left_alone() -> None:
    odd = 'fast = { source = "org/repo" }\n'
    write_own(odd)
    with pytest.raises(UsageError, match="cannot edit safely"):
        write("fast", "org/other", force=True)
    with pytest.raises(UsageError, match="cannot edit safely"):
        remove_alias("fast")
    assert user_file().read_text() == odd
    with pytest.raises(NotFoundError, match="none is no name"):
        remove_alias("none")


def test_removing_the_last_name_leaves_an_empty_file() -> None:
    write("fast", "org/repo")
    assert remove_alias("fast").source == "org/repo"
    assert user_file().read_text() == "" and "fast" not in load_catalog().entries
