"""Models inside wheels: with pip, and without it."""

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmrun.errors import DownloadError, ModelFileError, NotFoundError
from llmrun.models.refs import parse_ref
from llmrun.models.sources import Want, pypi
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.wheels import IndexServer, build_wheel, serve, write_index

MODEL = b"GGUF" + random.Random(1).randbytes(200_000)
SHA256 = hashlib.sha256(MODEL).hexdigest()
REF = "pypi:tiny-model==1.0/tiny_model/m.gguf"
CUT = "pypi:cut-a==1/cut_a/m.part0,cut-b==1/cut_b/m.part1"


class Seen(Quiet):
    """Keeps the progress too."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, int, int | None]] = []

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        self.steps.append((task, done, total))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index, proxy or login of this machine: what a test sets is all there is."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "1")


@pytest.fixture(params=["pip", "no pip"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "no pip":
        monkeypatch.setitem(sys.modules, "pip", None)
    return str(request.param)


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return [
        build_wheel(tmp_path / "wheels", "tiny-model", "1.0", {"tiny_model/m.gguf": MODEL, "tiny_model/x.py": b"x"}),
        build_wheel(tmp_path / "wheels", "cut-a", "1", {"cut_a/m.part0": MODEL[:90_000]}),
        build_wheel(tmp_path / "wheels", "cut-b", "1", {"cut_b/m.part1": MODEL[90_000:]}),
    ]


def want(ref: str = REF, name: str = "tiny", sha256: str | None = SHA256, size_bytes: int | None = None) -> Want:
    return Want(name, parse_ref(ref), sha256, size_bytes)


def pull(wanted: Want, report: Quiet | None = None) -> bytes:
    found = pypi.fetch(wanted, Store(), report or Quiet())
    assert pypi.locate(wanted, Store()) == found
    return found.paths[0].read_bytes()


def nothing_is_left() -> bool:
    store = Store()
    return store.entries() == [] and not list(store.root.glob("blobs/*")) and not list(store.root.glob("work/*/*"))


def test_from_a_folder(either: str, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "index", wheels))
    assert pypi.locate(want(), Store()) is None
    assert pull(want()) == MODEL
    store = Store()
    (entry,) = store.entries()
    assert (entry.name, entry.source, entry.files[0].name) == ("tiny", REF, "m.gguf")
    assert [path.name for path in (store.root / "blobs").iterdir()] == [f"sha256-{SHA256}"]
    assert not list((store.root / "work").iterdir())


@pytest.mark.parametrize(("has_pip", "as_json"), [(True, False), (False, False), (False, True)])
def test_from_a_server(has_pip: bool, as_json: bool, wheels: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_pip:
        monkeypatch.setitem(sys.modules, "pip", None)
    report = Seen()
    with serve(IndexServer(wheels, as_json)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        assert pull(want(CUT, "cut"), report) == MODEL
        assert pull(want(CUT, "cut")) == MODEL
    assert sorted(set(server.gets)) == [wheel.name for wheel in wheels[1:]]
    assert len(server.gets) == 2
    pulled = [(done, total) for task, done, total in report.steps if task == "pulling cut"]
    assert pulled == sorted(pulled, key=lambda step: step[0]) and pulled[-1][0] == pulled[-1][1]
    assert ("unpacking cut", len(MODEL), len(MODEL)) in report.steps


def test_a_second_name_for_the_same_wheel_downloads_nothing(
    wheels: list[Path], tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STORE-01: both names then stand for one blob."""
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "index", wheels))
    pull(want(name="one"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert pull(want(name="two")) == MODEL
    store = Store()
    assert store.remove("one").kept_for == ("two",)
    assert pypi.locate(want(name="two"), store) is not None
    assert store.remove("two").freed_bytes == len(MODEL)
    assert pypi.locate(want(name="two"), store) is None


def test_a_damaged_model_is_fetched_again(
    wheels: list[Path], tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX", write_index(tmp_path / "index", wheels))
    pull(want())
    store, report = Store(), Quiet()
    path = store.paths(store.entries()[0])[0]
    path.write_bytes(MODEL[:-1])
    assert pypi.locate(want(), store) is None
    assert pull(want(), report) == MODEL
    assert report.notes == ["tiny is damaged, so it is fetched again: m.gguf has 200003 bytes instead of 200004"]
    path.write_bytes(MODEL[:-1] + b"\0")
    assert [damage.name for damage in store.verify(Quiet())] == ["tiny"]
    assert pull(want()) == MODEL


def test_versions_and_packages_that_are_not_there(
    either: str, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "index", wheels))
    with pytest.raises(NotFoundError, match=r"no index has tiny-model 2\.0") as caught:
        pull(want("pypi:tiny-model==2.0/x"))
    assert caught.value.hint == "it has the versions 1.0"
    with pytest.raises(NotFoundError, match="no index has a wheel of no-such-thing"):
        pull(want("pypi:no-such-thing==2.0/x"))
    assert nothing_is_left()


def test_an_index_that_cannot_be_reached(either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match="reached") as caught:
        pull(want())
    assert "secret" not in caught.value.message + caught.value.hint
    assert nothing_is_left()


def test_a_file_that_the_wheel_does_not_hold(
    wheels: list[Path], tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "index", wheels))
    with pytest.raises(NotFoundError, match=r"tiny-model 1\.0 holds no 'other\.gguf'") as caught:
        pull(want("pypi:tiny-model==1.0/other.gguf"))
    assert "tiny_model/m.gguf" in caught.value.hint
    assert Store().entries() == []


def test_a_wrong_checksum_keeps_nothing(
    wheels: list[Path], tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "index", wheels))
    with pytest.raises(DownloadError, match="its sha256 is"):
        pull(want(sha256="0" * 64))
    assert nothing_is_left()


def test_a_wheel_unlike_its_index_is_refused(
    wheels: list[Path], tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "index", wheels, sha256="0" * 64))
    with pytest.raises(DownloadError, match="does not match the sha256 of its index"):
        pull(want())
    assert nothing_is_left()


def test_what_is_no_gguf_is_not_stored(tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEL-04: a page in place of the model."""
    wheel = build_wheel(tmp_path, "page", "1", {"page/m.gguf": b"<!doctype html><html></html>"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelFileError, match="HTML page"):
        pull(want("pypi:page==1/page/m.gguf", sha256=None))
    assert Store().entries() == []


def test_a_broken_wheel_is_fetched_anew(
    wheels: list[Path], tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = wheels[0].read_bytes()
    wheels[0].write_bytes(whole[:-50])
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "broken", wheels))
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        pull(want())
    wheels[0].write_bytes(whole)
    monkeypatch.setenv("PIP_INDEX_URL", write_index(tmp_path / "whole", wheels))
    assert pull(want()) == MODEL


def test_space_is_checked_first(no_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB-04: needed and free, before anything is asked for."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match="not enough disk space"):
        pull(want(size_bytes=10**18))


def test_login_of_the_index_goes_to_its_files_only(
    wheels: list[Path], no_pip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(IndexServer(wheels, login="me:pass word")) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        with pytest.raises(DownloadError, match="401"):
            pull(want())
        monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//me:pass%20word@"))
        assert pull(want()) == MODEL


def test_a_home_with_accents(
    either: str, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH-01: store, temporary folder and index in such folders, under the C locale."""
    odd = tmp_path / "é 日本 (2)"
    (odd / "tmp").mkdir(parents=True)
    for name, value in {"LC_ALL": "C", "TMPDIR": str(odd / "tmp"), "LLMRUN_HOME": str(odd / "Загрузки")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_INDEX_URL", write_index(odd / "index", wheels))
    assert pull(want()) == MODEL


PULL = f"""
import sys
from llmrun.models.refs import parse_ref
from llmrun.models.sources import Want, pypi
from llmrun.models.store import Store
from llmrun.report import Quiet
if sys.argv[1:] == ["no pip"]:
    sys.modules["pip"] = None
try:
    pypi.fetch(Want("tiny", parse_ref("{REF}"), "{SHA256}"), Store(), Quiet())
except BaseException as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


def start_pull(mode: str, said: Path) -> "subprocess.Popen[bytes]":
    with said.open("ab") as stderr:
        return subprocess.Popen([sys.executable, "-c", PULL, mode], stderr=stderr)


def test_two_pulls_are_one_download(
    either: str, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(IndexServer(wheels, pause_s=0.05)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        pulls = [start_pull(either, tmp_path / "said") for _ in range(2)]
        assert [pull.wait(120) for pull in pulls] == [0, 0], (tmp_path / "said").read_text()
    assert server.gets.count(wheels[0].name) == 1
    assert len(Store().entries()) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to send")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_is_ended_leaves_nothing_listed(
    how: signal.Signals, either: str, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(IndexServer(wheels, pause_s=0.3)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        pulling = start_pull(either, tmp_path / "said")
        assert server.started.wait(60)
        pulling.send_signal(how)
        assert pulling.wait(10) != 0
        assert Store().entries() == [] and pypi.locate(want(), Store()) is None
        if how == signal.SIGINT:
            assert "Interrupt" in (tmp_path / "said").read_text()
        server.pause_s = 0
        assert pull(want()) == MODEL
    assert not list((Store().root / "work").iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on the size of a file")
def test_a_disk_that_fails_half_way_is_one_line(
    wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HUB-04: nothing is registered, and the next pull succeeds."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels[0].parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(sys.modules, "pip", None)
    limit = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
    ran = subprocess.run(
        [sys.executable, "-c", limit + PULL, "no pip"], capture_output=True, encoding="utf-8", check=False
    )
    assert ran.stderr.startswith("DownloadError: ") and ran.stderr.count("\n") == 1
    assert Store().entries() == []
    assert pull(want()) == MODEL
