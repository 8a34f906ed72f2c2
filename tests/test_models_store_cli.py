"""Pulling, naming, checking and removing models, as a user meets it: a process of its own each."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.models.store import Store
from llmrun.report import size_text
from tests.cli import llmrun
from tests.hub_server import Hub
from tests.tiny import tiny_split

ANSWER = ("hi", "-n", "3", "--temp", "0", "-t", "1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield hub


@pytest.fixture
def model(tiny_model: Path) -> bytes:
    return tiny_model.read_bytes()


@pytest.fixture
def link(model: bytes) -> Iterator[str]:
    """A direct link, on a server that is not the hub."""
    with Hub() as server:
        server.plain["/x/m-Q4_0.gguf"] = (model, {"ETag": '"1"'})
        yield f"{server.url}/x/m-Q4_0.gguf"


def listed() -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(llmrun("list", "--json").text)["models"]}


def blobs() -> list[Path]:
    folder = Store().root / "blobs"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def ok(*args: object) -> str:
    done = llmrun(*args)
    assert done.status == 0, done.err
    return done.text


# Which file a name means.

QUANTS = ("m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_XL.gguf", "M.Q8_0.gguf")


def test_every_spelling_of_a_type(hub: Hub, model: bytes) -> None:
    """SEL-01: each resolves to one file, in any case; what is open or absent lists what there is."""
    hub.add("mock/repo", {name: model + bytes([n]) for n, name in enumerate(QUANTS)})
    wanted = {
        "q4_k_m": QUANTS[0],
        "Q4_K_M.gguf": QUANTS[0],
        "UD-Q4_K_XL": QUANTS[2],
        "Q4_K_XL": QUANTS[2],
        "Q8_0": QUANTS[3],
        "Q8": QUANTS[3],
    }
    lines = ok("pull", "--dry-run", *(f"mock/repo:{quant}" for quant in wanted)).splitlines()
    assert [line.split()[0] for line in lines] == list(wanted.values())
    llmrun("pull", "mock/repo:Q4_K").failed(2, "'Q4_K' can be Q4_K_M, Q4_K_S")
    llmrun("pull", "mock/repo:Q5_K_M").failed(2, "Q5_K_M", "Q4_K_M", "Q4_K_S", "UD-Q4_K_XL", "Q8_0")
    assert listed() == {}
    ok("pull", "mock/repo:q4_k_m", "mock/repo:Q4_K_M.gguf", "MOCK/Repo:Q4_K_M")
    assert list(listed()) == ["mock/repo:Q4_K_M"]
    assert hub.sent("/cdn/") == len(model) + 1


def test_a_split_model_is_fetched_listed_run_and_removed_whole(hub: Hub, tmp_path: Path) -> None:
    """SEL-03"""
    (tmp_path / "split").mkdir()
    parts = tiny_split(tmp_path / "split", stem="m-Q3_K_M")
    files = {f"Q3_K_M/{part.name}": part.read_bytes() for part in parts}
    others = {f"Q8_0/m-Q8_0-0000{n}-of-00002.gguf": parts[0].read_bytes() + bytes(n) for n in (1, 2)}
    hub.add("mock/repo", files | others)
    ok("pull", "mock/repo:Q3_K_M")
    ((name, row),) = listed().items()
    assert name == "mock/repo:Q3_K_M"
    assert row["size_bytes"] == sum(map(len, files.values()))
    assert ok("run", "mock/repo:Q3_K_M", *ANSWER)
    removed = ok("rm", "--yes", "mock/repo:Q3_K_M")
    assert "removed mock/repo:Q3_K_M: frees 4" in removed
    assert listed() == {}
    assert not list((tmp_path / "hf").rglob("*.gguf"))


def test_every_form_of_address_is_one_file(hub: Hub, model: bytes) -> None:
    """SEL-04"""
    hub.add("org/repo", {"m-Q4_0.gguf": model})
    pages = [f"{hub.url}/org/repo/{kind}/main/m-Q4_0.gguf" for kind in ("blob", "resolve")]
    named = ["https://huggingface.co/org/repo/blob/main/m-Q4_0.gguf", "hf.co/org/repo:Q4_0", "hf://org/repo"]
    lines = ok("pull", "--dry-run", *pages, *named).splitlines()
    assert len(lines) == 5 and len(set(lines)) == 1 and lines[0].startswith("m-Q4_0.gguf  ")
    assert hub.requests("/resolve/") == []


def test_two_repos_with_the_same_file_name(hub: Hub, model: bytes) -> None:
    """SEL-04: the two stay apart."""
    hub.add("a/repo", {"m-Q4_0.gguf": model})
    hub.add("b/repo", {"m-Q4_0.gguf": model + b"b"})
    ok("pull", "a/repo:Q4_0", "b/repo:Q4_0")
    assert {name: row["size_bytes"] for name, row in listed().items()} == {
        "a/repo:Q4_0": len(model),
        "b/repo:Q4_0": len(model) + 1,
    }


# Names, and what removing them frees.


def test_two_names_for_one_file(link: str, model: bytes, tiny_model: Path, tmp_path: Path) -> None:
    """STORE-01"""
    for name in ("name1", "name2"):
        assert f"{name} stands for {link}" in ok("alias", name, link)
        ok("pull", name)
    assert len(blobs()) == 1
    assert "its data is still used by name2" in ok("rm", "--yes", "name1")
    assert ok("run", "name2", *ANSWER)
    assert ok("rm", "--yes", "name2") == f"removed name2: frees {size_text(len(model))}\n"
    assert blobs() == []
    llmrun("rm", "--yes", "name2").failed(1, "no model is called 'name2'")
    own = shutil.copy(tiny_model, tmp_path / "own.gguf")
    llmrun("rm", "--yes", own).failed(2, "is a file of your own")
    assert Path(own).exists()


def test_a_name_that_was_taken_back_still_leads_to_its_data(link: str) -> None:
    """What `list` shows can be typed."""
    ok("alias", "mine", link)
    ok("pull", "mine")
    ok("alias", "--remove", "mine")
    assert list(listed()) == ["mine"]
    assert ok("run", "mine", *ANSWER)
    ok("rm", "--yes", "mine")
    assert listed() == {} and blobs() == []


# Damage.


def test_a_damaged_file_is_noticed_and_healed(link: str, model: bytes) -> None:
    ok("pull", link)
    (blob,) = blobs()
    blob.write_bytes(model[:-1] + b"\xff")
    assert listed()[link]["fault"] == ""
    checked = llmrun("list", "--verify")
    assert checked.status == 1
    assert f"{link}: m-Q4_0.gguf does not match its checksum; llmrun pull {link} fetches it again" in checked.err
    assert "damaged" in llmrun("list").text
    assert "is here (" in ok("pull", link)
    assert blob.read_bytes() == model
    assert blobs() == [blob]
    whole = llmrun("list", "--verify")
    assert whole.status == 0 and "every file of llmrun's store is whole" in whole.err
    assert whole.text.count("m-Q4_0.gguf") == 1


@pytest.mark.parametrize("damage", ["short", "gone"])
def test_damage_that_shows_heals_on_the_way_to_an_answer(damage: str, link: str, model: bytes) -> None:
    ok("pull", link)
    (blob,) = blobs()
    if damage == "short":
        blob.write_bytes(model[:1000])
    else:
        blob.unlink()
    assert listed()[link]["fault"] != ""
    answer = llmrun("run", link, *ANSWER)
    assert answer.status == 0, answer.err
    assert "is damaged, so it is fetched again" in answer.err
    assert blob.read_bytes() == model


def test_verify_as_json(link: str, model: bytes) -> None:
    ok("pull", link)
    blobs()[0].write_bytes(b"GGUF" + bytes(len(model) - 4))
    checked = llmrun("list", "--verify", "--json")
    assert checked.status == 1
    (damage,) = json.loads(checked.text)["damaged"]
    assert damage == {"name": link, "file": "m-Q4_0.gguf", "reason": "does not match its checksum"}


# Links that grant access.


def test_no_secret_is_kept_of_a_link(link: str, home: Path) -> None:
    """The link works; what grants access is neither shown nor stored."""
    address = link.replace("http://", "http://me:geheim@") + "?X-Amz-Signature=geheim&part=2"
    said = [
        llmrun("pull", "--dry-run", address),
        llmrun("pull", address),
        llmrun("pull", "--json", address),
        llmrun("list"),
        llmrun("list", "--json"),
        llmrun("show", address),
        llmrun("alias", "mine", address),
        llmrun("run", address, *ANSWER, "--json"),
        llmrun("run", "mine", *ANSWER),
    ]
    for result in said:
        assert result.status == 0, result.err
        assert "geheim" not in result.text + result.err
    assert list(listed()) == [f"{link}?part=2"]
    for path in (path for path in home.rglob("*") if path.is_file()):
        assert b"geheim" not in path.read_bytes(), path
        assert "geheim" not in str(path)
    assert ok("rm", "--yes", address).startswith("removed http")
    assert listed() == {}
