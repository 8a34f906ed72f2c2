"""Blobs, manifests and locks of llmrun's own store."""

import hashlib
import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from llmrun.errors import NotFoundError, StoreError
from llmrun.models.manifest import Entry, safe_name
from llmrun.models.store import Incoming, Store
from llmrun.report import Quiet


def put(store: Store, name: str, data: bytes, source: str = "url") -> Entry:
    with store.lock(source, Quiet()):
        path = store.work_dir(source) / "file"
        path.write_bytes(data)
        return store.add(name, source, [Incoming(path, "m.gguf", hashlib.sha256(data).hexdigest())])


def blob_bytes(store: Store) -> int:
    return sum(path.stat().st_size for path in (store.root / "blobs").iterdir())


@pytest.fixture
def store(home: Path) -> Store:
    return Store()


def test_what_is_added_is_found(store: Store, home: Path) -> None:
    assert store.find("a") is None and store.entries() == []
    entry = put(store, "a", b"weights", source="https://host/m.gguf")
    assert store.find("a") == entry
    assert store.find_source("https://host/m.gguf") == entry
    assert store.entries() == [entry]
    assert entry.size_bytes == 7
    (path,) = store.paths(entry)
    assert path.read_bytes() == b"weights" and path.is_relative_to(home / "cache" / "store")
    assert store.damage(entry) is None
    assert not list((store.root / "work").iterdir())


def test_two_names_share_one_blob_and_the_last_one_frees_it(store: Store) -> None:
    """STORE-01: removing one name leaves the other usable and says so; a repeated removal fails."""
    first = put(store, "name1", b"x" * 1000)
    store.link("name2", first)
    assert blob_bytes(store) == 1000
    removed = store.remove("name1")
    assert (removed.freed_bytes, removed.kept_for) == (0, ("name2",))
    entry = store.find("name2")
    assert entry is not None and store.paths(entry)[0].read_bytes() == b"x" * 1000
    removed = store.remove("name2")
    assert (removed.freed_bytes, removed.kept_for) == (1000, ())
    assert blob_bytes(store) == 0
    with pytest.raises(NotFoundError, match="name2") as caught:
        store.remove("name2")
    assert caught.value.exit_status == 1


def test_the_same_bytes_from_two_sources_are_kept_once(store: Store) -> None:
    put(store, "a", b"same", source="url:1")
    put(store, "b", b"same", source="url:2")
    assert blob_bytes(store) == 4
    assert store.remove("a").kept_for == ("b",)


def test_a_short_blob_is_noticed_at_once_and_healed_by_adding_again(store: Store) -> None:
    entry = put(store, "a", b"weights")
    store.paths(entry)[0].write_bytes(b"wei")
    assert store.damage(entry) == "m.gguf has 3 bytes instead of 7"
    store.paths(entry)[0].unlink()
    assert store.damage(entry) == "the data of m.gguf is missing"
    assert store.damage(put(store, "a", b"weights")) is None


def test_verify_sets_a_changed_blob_aside_for_every_name_of_it(store: Store) -> None:
    entry = put(store, "a", b"weights")
    store.link("b", entry)
    put(store, "whole", b"other")
    assert store.verify(Quiet()) == []
    store.paths(entry)[0].write_bytes(b"weightz")
    damage = store.verify(Quiet())
    assert [(item.name, item.reason) for item in damage] == [
        ("a", "does not match its checksum"),
        ("b", "does not match its checksum"),
    ]
    assert store.damage(entry) == "the data of m.gguf is missing"
    put(store, "a", b"weights")
    assert store.damage(entry) is None and store.verify(Quiet()) == []
    assert blob_bytes(store) == len(b"weights" + b"other")


def test_a_manifest_that_is_none_is_passed_over(store: Store) -> None:
    entry = put(store, "good", b"weights")
    manifests = store.root / "manifests"
    (manifests / "cut.json").write_text('{"name": "cut", "fil')
    (manifests / "list.json").write_text("[1, 2]")
    evil = {"name": "evil", "source": "", "created": 0, "meta": {}}
    evil["files"] = [{"name": "x", "sha256": "../../../../etc/passwd", "size_bytes": 1}]
    (manifests / "evil.json").write_text(json.dumps(evil))
    assert store.entries() == [entry]
    assert store.find("evil") is None


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../../etc/passwd",
        "/abs",
        "C:\\x",
        "a\nb",
        "\x1b[31m",
        "con",
        "nul.gguf",
        "\u202egguf",
        "Ж",
        "x" * 5000,
        "",
    ],
)
def test_no_name_leads_outside_the_store(store: Store, name: str) -> None:
    entry = put(store, name, b"weights")
    assert store.find(name) == entry
    files = [path for path in store.root.rglob("*") if path.is_file() and path.parent.name != "locks"]
    assert len(files) == 2
    assert all(path.name.isascii() and path.name.isprintable() and len(path.name) < 200 for path in files)
    assert store.remove(name).freed_bytes == 7


def test_safe_names_differ_where_the_names_do() -> None:
    names = ["a", "A", "a/b", "a:b", "a%2f.b", "con", "%con", ".a", "x" * 200, "x" * 201, "Ж", "ж"]
    assert len({safe_name(name).lower() for name in names}) == len(names)


def test_what_a_crash_left_is_removed_by_the_next_add(store: Store) -> None:
    put(store, "a", b"weights")
    (store.root / "blobs" / f"sha256-{'0' * 64}").write_bytes(b"orphan")
    (store.root / "manifests" / "a.json.1.tmp").write_bytes(b"{")
    fresh, stale = store.work_dir("fresh"), store.work_dir("stale")
    (stale / "part").write_bytes(b"half")
    old = time.time() - 30 * 24 * 3600
    os.utime(stale, (old, old))
    assert [entry.name for entry in store.entries()] == ["a"]
    put(store, "b", b"other")
    assert fresh.is_dir() and not stale.exists()
    assert blob_bytes(store) == len(b"weights" + b"other")
    assert sorted(path.name for path in (store.root / "manifests").iterdir()) == ["a.json", "b.json"]


def test_a_store_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="file") as caught:
        Store(tmp_path / "file").work_dir("a")
    assert "LLMRUN_HOME" in caught.value.hint


def _hold(root: Path, ready: "multiprocessing.synchronize.Event", go: "multiprocessing.synchronize.Event") -> None:
    store = Store(root)
    with store.lock("url", Quiet()):
        ready.set()
        go.wait(60)
        path = store.work_dir("url") / "file"
        path.write_bytes(b"first")
        store.add("a", "url", [Incoming(path, "m.gguf", hashlib.sha256(b"first").hexdigest())])


def test_the_second_fetch_waits_for_the_first_and_says_so(store: Store) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, go = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(store.root, ready, go))
    other.start()
    assert ready.wait(60)
    report = _Releasing(go)
    with store.lock("url", report):
        assert store.find("a") is not None
    assert report.notes == ["another llmrun is fetching url: waiting for it"]
    other.join(60)
    assert other.exitcode == 0


class _Releasing(Quiet):
    """Lets the other process go on once this one has said that it waits."""

    def __init__(self, go: "multiprocessing.synchronize.Event") -> None:
        super().__init__()
        self.go = go

    def note(self, text: str) -> None:
        super().note(text)
        self.go.set()


def test_a_home_with_accents_and_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH-01: LLMRUN_HOME in such a folder."""
    monkeypatch.setenv("LLMRUN_HOME", str(tmp_path / "é 日本 (2)" / "Загрузки"))
    entry = put(Store(), "a", b"weights")
    assert Store().find("a") == entry
    assert Store().paths(entry)[0].is_relative_to(tmp_path / "é 日本 (2)" / "Загрузки")
