"""Removing models: what it frees, and what it must leave."""

import hashlib
from pathlib import Path

import pytest

from llmrun.errors import LlmrunError, NotFoundError, UsageError
from llmrun.models.aliases import write_alias
from llmrun.models.catalog import load_catalog, user_file
from llmrun.models.places import names
from llmrun.models.removal import Removal, plan_removal
from llmrun.models.resolve import resolve
from llmrun.models.store import Incoming, Store
from llmrun.report import Quiet
from tests.hub_cache import COMMIT, OLDER, cache_repo
from tests.ollama_store import LIBRARY, add_model

DATA = b"GGUF" + bytes(996)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def put(name: str, source: str, data: bytes = DATA) -> None:
    store = Store()
    with store.lock(source, Quiet()):
        path = store.work_dir(source) / "file"
        path.write_bytes(data)
        store.add(name, source, [Incoming(path, "m.gguf", hashlib.sha256(data).hexdigest())])


def remove(text: str, others: bool = False) -> Removal:
    removal, act = plan_removal(text, load_catalog(), Store(), others)
    act()
    return removal


def refused(text: str, others: bool = False) -> LlmrunError:
    with pytest.raises(LlmrunError) as caught:
        remove(text, others)
    return caught.value


def alias(name: str, text: str) -> None:
    write_alias(name, text, load_catalog(), Store())


def is_here(text: str) -> bool:
    return bool(resolve(text, load_catalog(), Store(), Quiet()).paths)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_a_model_in_the_store() -> None:
    put("smollm2", load_catalog().entries["smollm2"].sources[0])
    removal, act = plan_removal("smollm2", load_catalog(), Store())
    assert (removal.place, removal.freed_bytes, removal.kept_for) == ("store", 1000, ())
    assert is_here("smollm2")
    act()
    assert not is_here("smollm2") and not list((Store().root / "blobs").iterdir())
    error = refused("smollm2")
    assert isinstance(error, NotFoundError) and error.exit_status == 1


def test_two_names_for_one_file_in_the_store() -> None:
    """STORE-01."""
    alias("one", "https://host/m.gguf")
    alias("two", "https://host/m.gguf")
    put("one", "https://host/m.gguf")
    put("two", "https://host/m.gguf")
    removal = remove("one")
    assert (removal.freed_bytes, removal.kept_for, removal.forgets) == (0, ("two",), True)
    assert is_here("two")
    assert remove("two").freed_bytes == 1000
    assert not list((Store().root / "blobs").iterdir())
    for name in ("one", "two"):
        assert refused(name).exit_status == 1


def test_two_names_for_one_hub_model(hub: Path) -> None:
    """STORE-01."""
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": DATA})
    alias("one", "org/repo:Q4_0")
    alias("two", "org/repo")
    removal = remove("one")
    assert (removal.files, removal.freed_bytes, removal.kept_for, removal.forgets) == ((), 0, ("two",), True)
    assert is_here("two")
    assert remove("two").freed_bytes >= 1000
    assert files(hub) == []
    assert refused("two").exit_status == 1


def test_a_name_with_settings_stays(hub: Path) -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text('[mine]\nsource = "org/repo:Q4_0"\ntemp = 0.5\n')
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": DATA})
    assert not remove("mine").forgets
    assert files(hub) == [] and "temp = 0.5" in user_file().read_text()
    assert refused("mine").message == "mine is not here"


def test_a_second_name_for_a_name_goes_alone() -> None:
    put("smollm2", load_catalog().entries["smollm2"].sources[0])
    alias("fast", "smollm2")
    removal = remove("fast")
    assert (removal.freed_bytes, removal.kept_for, removal.forgets) == (0, ("smollm2",), True)
    assert is_here("smollm2") and "fast" not in load_catalog().entries


SPLIT = {f"Q3_K_M/m-Q3_K_M-0000{n}-of-00003.gguf": DATA + bytes([n]) for n in (1, 2, 3)}
OTHER = {f"Q8_0/m-Q8_0-0000{n}-of-00002.gguf": DATA + bytes([n, n]) for n in (1, 2)}


def test_all_parts_of_a_split_model_and_no_others(hub: Path) -> None:
    """SEL-03."""
    folder = cache_repo(hub, "mock/repo", {**SPLIT, **OTHER, "README.md": b"#"})
    removal = remove("mock/repo:q3_k_m")
    assert removal.name == "mock/repo:Q3_K_M" and removal.freed_bytes == 3 * 1001
    assert files(folder / "snapshots") == [f"{COMMIT}/{name}" for name in [*OTHER, "README.md"]]
    assert len(files(folder / "blobs")) == 3
    assert names(Store()) == ["mock/repo:Q8_0"]
    assert remove("mock/repo").name == "mock/repo:Q8_0"
    assert not folder.exists()


def test_data_that_another_commit_has_too_goes_with_its_model(hub: Path) -> None:
    folder = cache_repo(hub, "org/repo", {"m-Q4_0.gguf": DATA, "old-Q8_0.gguf": DATA + b"8"}, OLDER, "v1")
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": DATA})
    assert remove("org/repo:Q4_0").freed_bytes == 1000
    assert names(Store()) == ["org/repo:Q8_0"]
    assert files(folder / "refs") == ["v1"]


def test_a_blob_that_two_files_share_stays(hub: Path) -> None:
    folder = cache_repo(hub, "org/repo", {"a-Q4_0.gguf": DATA, "b-Q8_0.gguf": DATA})
    assert remove("org/repo:Q4_0").freed_bytes == 0
    assert is_here("org/repo:Q8_0") and len(files(folder / "blobs")) == 1


def test_a_repo_with_several_models_has_to_be_named_with_a_type(hub: Path) -> None:
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": DATA, "m-Q8_0.gguf": DATA + b"8"})
    error = refused("org/repo")
    assert error.message == "several models of org/repo are here: Q4_0, Q8_0" and error.exit_status == 2
    assert refused("org/repo:Q5_K_M").hint == "it has Q4_0, Q8_0"
    assert refused("org/none").message == "org/none is not here"
    assert len(names(Store())) == 2


def test_parts_of_a_download_go_with_the_last_model(hub: Path) -> None:
    folder = cache_repo(hub, "org/repo", {"m-Q4_0.gguf": DATA, "README.md": b"#"})
    (folder / "blobs" / f"{'0' * 64}.llmrun.incomplete").write_bytes(bytes(5000))
    assert remove("org/repo:Q4_0").freed_bytes >= 6001
    assert files(hub) == []


def test_a_cache_without_links(hub: Path) -> None:
    """HUB-06: as on Windows, where files lie in the snapshot itself."""
    snapshot = hub / "models--org--repo" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf"):
        (snapshot / name).write_bytes(DATA)
    assert remove("org/repo:Q4_0").freed_bytes == 1000
    assert files(snapshot) == ["m-Q8_0.gguf"]


def test_a_checkpoint_goes_whole(hub: Path) -> None:
    cache_repo(hub, "org/raw", {"config.json": b"{}", "model.safetensors": bytes(50)})
    assert remove("org/raw").freed_bytes == 52 + len(COMMIT)
    assert files(hub) == []


def test_a_users_own_file_is_never_deleted(tmp_path: Path) -> None:
    """STORE-01."""
    path = tmp_path / "m.gguf"
    path.write_bytes(DATA)
    for others in (False, True):
        error = refused(str(path), others)
        assert isinstance(error, UsageError) and "a file of your own" in error.message
    alias("mine", str(path))
    assert "llmrun alias --remove mine" in refused("mine").hint
    assert path.exists()


def test_ollamas_models_need_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    add_model(folder, f"{LIBRARY}/m", "latest", DATA)
    add_model(folder, f"{LIBRARY}/m", "same", DATA)
    add_model(folder, f"{LIBRARY}/other", "latest", DATA + b"other")
    assert refused("ollama:m").message == "ollama:m:latest belongs to ollama"
    removal = remove("ollama:m", others=True)
    assert (removal.freed_bytes, removal.kept_for) == (0, ("ollama:m:same",))
    assert remove("ollama:m:same", others=True).freed_bytes == 1000
    assert is_here("ollama:other")
    assert len(files(folder / "blobs")) == 2


def test_lm_studios_models_need_the_flag() -> None:
    folder = Path.home() / ".lmstudio/models/org/repo"
    folder.mkdir(parents=True)
    for n in (1, 2):
        (folder / f"m-Q8_0-0000{n}-of-00002.gguf").write_bytes(DATA)
    path = str(folder / "m-Q8_0-00001-of-00002.gguf")
    assert refused(path).message == f"{path} belongs to LM Studio"
    assert remove(path, others=True).freed_bytes == 2000
    assert files(folder) == []
