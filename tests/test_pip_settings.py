"""Which indexes are asked where there is no pip: those that pip itself would ask, and uv's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.models.sources.pip_settings import PYPI, Settings, read_settings

VARIABLES = ("PIP_", "UV_", "XDG_")


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "global"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def pip_reads() -> Settings:
    """pip's own reading of this environment and this machine's files, whatever they hold."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    found: dict[str, str] = {}
    for section in ("global.", "download.", ":env:."):
        for line in listed.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(section) and value != "''":  # pip passes over what is set to nothing
                found[key.removeprefix(section)] = value[1:-1].replace("\\n", " ")
    indexes = [found.get("index-url", PYPI), *found.get("extra-index-url", "").split()]
    return Settings(tuple(dict.fromkeys(indexes)), tuple(found.get("find-links", "").split()))


def test_every_file_and_variable_in_pips_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings() == pip_reads()
    write(tmp_path / "global/pip/pip.conf", "[global]\nindex-url = https://global/simple\nfind-links = /global\n")
    assert read_settings() == pip_reads()
    write(
        tmp_path / "home/.pip/pip.conf",
        "[global]\nindex_url = https://old/simple\nextra-index-url = https://old-extra\n",
    )
    assert read_settings() == pip_reads()
    user = "[global]\nindex-url = https://user/simple\nextra-index-url =\n  https://a/simple\n  https://b/simple\n"
    write(tmp_path / "home/.config/pip/pip.conf", user + "[download]\nfind-links = /links /more\n")
    assert read_settings() == pip_reads()
    assert read_settings().indexes[:3] == ("https://user/simple", "https://a/simple", "https://b/simple")
    named = write(tmp_path / "named.conf", "[download]\nindex-url = https://named/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(named))
    assert read_settings() == pip_reads()
    assert read_settings().indexes[0] == "https://named/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://c https://d")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert read_settings() == pip_reads()
    assert read_settings().indexes == ("https://variable/simple", "https://c", "https://d")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read_settings() == Settings(("https://variable/simple", "https://c", "https://d"), ())


def test_a_file_that_is_broken_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", str(write(tmp_path / "x.conf", "no section\nindex-url = https://x\n")))
    assert "https://x" not in read_settings().indexes


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_nothing_set_means_pypi(no_files: None) -> None:
    assert read_settings() == Settings((PYPI,), ())


def test_uvs_variables(no_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://pip/simple")
    monkeypatch.setenv("UV_INDEX", "mine=https://one/simple https://two/simple?a=b")
    monkeypatch.setenv("UV_EXTRA_INDEX_URL", "https://three/simple")
    monkeypatch.setenv("UV_FIND_LINKS", "/links,https://page")
    assert read_settings() == Settings(
        ("https://pip/simple", "https://one/simple", "https://two/simple?a=b", "https://three/simple"),
        ("/links", "https://page"),
    )
    monkeypatch.setenv("UV_INDEX_URL", "https://old/simple")
    assert read_settings().indexes[0] == "https://old/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "default=https://uv/simple")
    assert read_settings().indexes[0] == "https://uv/simple"


@pytest.mark.parametrize("name", ["PIP_NO_INDEX", "UV_NO_INDEX"])
def test_no_index_leaves_the_links(name: str, no_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/links")
    monkeypatch.setenv(name, "1")
    assert read_settings() == Settings((), ("/links",))
