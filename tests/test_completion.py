"""What a shell offers while a command line is typed, asked for as Typer's scripts for the shells do."""

import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.models.aliases import write_alias
from llmrun.models.catalog import load_catalog, user_file
from llmrun.models.store import Store
from tests.cli import REPO, environment, llmrun
from tests.hub_cache import cache_repo
from tests.test_imports import HEAVY

CATALOGUE = list(load_catalog().entries)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    cache_repo(tmp_path / "hf" / "hub", "org/repo", {"m-Q4_0.gguf": tiny_model.read_bytes()})
    write_alias("mine", str(tiny_model), load_catalog(), Store())


def asked(line: str) -> dict[str, str | None]:
    """The environment for completing the last word of `line`."""
    return {"_LLMRUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}


def offered(line: str) -> list[str]:
    done = llmrun(env=asked(line))
    assert done.status == 0 and done.err == "", done
    return done.text.split()


@pytest.mark.parametrize(
    "line", ["run ", "run -m ", "run -n 3 ", "chat ", "show ", "pull a ", "tokenize ", "plan ", "bench "]
)
def test_any_model(line: str) -> None:
    names = offered(f"llmrun {line}")
    assert set(names) == {*CATALOGUE, "mine", "org/repo:Q4_0"} and len(names) == len(set(names))


def test_what_begins_so() -> None:
    assert offered("llmrun run org") == ["org/repo:Q4_0"]
    assert offered("llmrun alias new mi") == ["mine"]
    assert offered("llmrun ru") == ["run"]
    assert offered("llmrun run --top-") == ["--top-k", "--top-p", "--top-n-sigma"]


def test_only_what_is_here_can_be_removed() -> None:
    assert offered("llmrun rm ") == ["mine", "org/repo:Q4_0"]


@pytest.mark.parametrize("line", ["run smollm2 ", "run -m smollm2 ", "alias "])
def test_nothing_in_place_of_text(line: str) -> None:
    assert offered(f"llmrun {line}") == []


def test_a_catalogue_with_a_fault_hides_no_models() -> None:
    user_file().write_text("[mine\n", encoding="utf-8")
    assert offered("llmrun run ") == ["org/repo:Q4_0"]
    assert offered("llmrun rm ") == ["org/repo:Q4_0"]


@pytest.mark.parametrize(
    ("shell", "more"),
    [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}), ("powershell", {})],
)
def test_other_shells(shell: str, more: dict[str, str]) -> None:
    env = {"_LLMRUN_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "llmrun run mi", **more}
    if shell == "powershell":
        env["_TYPER_COMPLETE_WORD_TO_COMPLETE"] = "mi"
    done = llmrun(env=env)
    assert (done.status, done.err) == (0, "") and "mine" in done.text


@pytest.mark.parametrize("command", ["run", "chat", "show", "rm", "pull"])
def test_nothing_heavy_is_imported(command: str) -> None:
    program = f"""
import sys
from llmrun.cli import main
try:
    main([])
finally:
    heavy = {[*HEAVY, "pydantic", "rich", "httpx2", "llmrun.gguf.header"]!r}
    print([name for name in heavy if sys.modules.get(name)], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(asked(f"llmrun {command} org")),
        cwd=REPO,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["org/repo:Q4_0"]
    assert done.stderr.splitlines()[-1] == "[]"
