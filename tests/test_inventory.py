"""What is on this machine, wherever it came from."""

import hashlib
import json
import struct
from pathlib import Path

import pytest

from llmrun.models.catalog import load_catalog
from llmrun.models.inventory import LocalModel, list_models
from llmrun.models.places import names
from llmrun.models.refs import parse_ref
from llmrun.models.resolve import resolve
from llmrun.models.store import Incoming, Store
from llmrun.report import Quiet
from tests.hub_cache import OLDER, cache_repo
from tests.ollama_store import LIBRARY, add_model
from tests.tiny import tiny_gguf


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf").read_bytes()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def put(name: str, data: bytes, file_name: str = "m.gguf", source: str = "") -> None:
    store, source = Store(), source or f"https://host/{name}"
    with store.lock(source, Quiet()):
        path = store.work_dir(source) / "file"
        path.write_bytes(data)
        store.add(name, source, [Incoming(path, file_name, hashlib.sha256(data).hexdigest())])


def listed(others: bool = False) -> dict[str, LocalModel]:
    return {model.name: model for model in list_models(Store(), others)}


def test_nothing_is_here(hub: Path) -> None:
    assert list_models(Store(), others=True) == []


def test_the_store(gguf: bytes, hub: Path, home: Path) -> None:
    put("tiny", gguf)
    (model,) = list_models(Store())
    assert (model.name, model.place, model.kind, model.fault) == ("tiny", "store", "gguf", "")
    assert model.size_bytes == len(gguf) and model.arch == "llama" and model.n_ctx_train > 0 and model.n_params > 0
    assert list_models(Store()) == [model]
    facts = json.loads((home / "cache" / "facts.json").read_text())
    assert list(facts) == list(model.paths)


def test_damage_does_not_hide_the_rest(gguf: bytes, hub: Path) -> None:
    """SEC-02, GGUF-02: each bad file is listed with its fault, the others as ever."""
    put("good", gguf)
    put("hostile", b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60))
    put("half", gguf[: len(gguf) // 2])
    put("gone", gguf + b"\0")
    put("short", gguf + b"\0\0")
    store = Store()
    gone, short = (store.find(name) for name in ("gone", "short"))
    assert gone is not None and short is not None
    store.paths(gone)[0].unlink()
    store.paths(short)[0].write_bytes(b"GGUF")
    models = listed()
    assert models["good"].fault == ""
    assert models["hostile"].fault.startswith("corrupt or malicious")
    assert models["half"].fault.startswith("incomplete: ")
    assert models["gone"].fault == "the data of m.gguf is missing"
    assert models["short"].fault.startswith("m.gguf has 4 bytes instead of")


def test_what_is_no_model_is_not_offered(gguf: bytes, hub: Path, tmp_path: Path) -> None:
    """GGUF-06: by its name, or by what its header says."""
    projector = tiny_gguf(tmp_path / "p.gguf", metadata={"general.type": "mmproj"}).read_bytes()
    put("projector", projector)
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": gguf, "mmproj-m-F16.gguf": projector})
    assert list(listed()) == ["org/repo:Q4_0"]


PARTS = {f"Q8_0/m-Q8_0-0000{n}-of-00002.gguf": n for n in (1, 2)}


def test_the_hub_cache(gguf: bytes, hub: Path) -> None:
    """GGUF-05, SEL-03: a split model is one row with the summed size; an incomplete one is none."""
    parts = {name: gguf + bytes(n) for name, n in PARTS.items()}
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": gguf, **parts, "README.md": b"#", "m-Q2_K-00001-of-00002.gguf": gguf})
    cache_repo(hub, "org/two", {"a.gguf": gguf, "b.gguf": gguf})
    cache_repo(hub, "org/raw", {"config.json": b"{}", "model.safetensors": b"x" * 50, "README.md": b"#"})
    models = listed()
    assert list(models) == ["hf:org/two/a.gguf", "hf:org/two/b.gguf", "org/raw", "org/repo:Q4_0", "org/repo:Q8_0"]
    assert models["org/repo:Q8_0"].size_bytes == sum(len(data) for data in parts.values())
    assert len(models["org/repo:Q8_0"].paths) == 2
    assert (models["org/raw"].kind, models["org/raw"].size_bytes) == ("checkpoint", 53)
    assert names(Store()) == list(models)
    for name in models:
        assert resolve(name, load_catalog(), Store(), Quiet()).paths, name


def test_a_type_in_two_commits_is_listed_once(gguf: bytes, hub: Path) -> None:
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": gguf + b"old", "m-Q8_0.gguf": gguf}, OLDER)
    cache_repo(hub, "org/repo", {"m-Q4_0.gguf": gguf})
    models = listed()
    assert list(models) == ["org/repo:Q4_0", "org/repo:Q8_0"]
    assert models["org/repo:Q4_0"].size_bytes == len(gguf)


def test_other_programs_folders(gguf: bytes, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    add_model(tmp_path / "ollama", f"{LIBRARY}/llama3.2", "latest", gguf)
    add_model(tmp_path / "ollama", f"{LIBRARY}/llama3.2", "3b", gguf)
    studio = Path.home() / ".lmstudio/models/org/repo"
    studio.mkdir(parents=True)
    (studio / "m-Q4_0.gguf").write_bytes(gguf)
    (studio / "mmproj-F16.gguf").write_bytes(gguf)
    assert listed() == {}
    models = listed(others=True)
    assert list(models) == ["ollama:llama3.2", "ollama:llama3.2:3b", str(studio / "m-Q4_0.gguf")]
    assert [model.place for model in models.values()] == ["ollama", "ollama", "lmstudio"]
    for name in models:
        parse_ref(name)
        assert resolve(name, load_catalog(), Store(), Quiet()).paths, name


def test_lm_studio_may_have_moved(gguf: bytes, hub: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "models" / "org" / "repo"
    moved.mkdir(parents=True)
    (moved / "m.gguf").write_bytes(gguf)
    (Path.home() / ".lmstudio-home-pointer").write_text(str(tmp_path / "elsewhere"))
    assert list(listed(others=True)) == [str(moved / "m.gguf")]


def test_a_changed_file_is_read_again(gguf: bytes, hub: Path, tmp_path: Path) -> None:
    studio = Path.home() / ".lmstudio/models"
    studio.mkdir(parents=True)
    (studio / "m.gguf").write_bytes(gguf)
    assert listed(others=True)[str(studio / "m.gguf")].fault == ""
    (studio / "m.gguf").write_bytes(gguf[:-100])
    assert listed(others=True)[str(studio / "m.gguf")].fault.startswith("incomplete")
    (studio / "m.gguf").unlink()
    put("tiny", gguf)
    listed()
    assert listed(others=True).keys() == {"tiny"}
