import _thread
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.errors import DownloadError, Interrupted
from llmrun.models import download
from llmrun.models.parts import kept_bytes
from llmrun.models.refs import parse_ref
from llmrun.models.sources import Found, Want, hf, hf_cache
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests import kills
from tests.hub_server import Hub

SIZE = 6_000_000
MODEL = b"GGUF" + random.Random(4).randbytes(SIZE - 4)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.005)
    with Hub() as hub:
        hub.add("mock/repo", {"m-Q4_K_M.gguf": MODEL})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield hub


def pull(report: Quiet | None = None) -> Found:
    return hf.fetch(Want("mock/repo", parse_ref("mock/repo")), Store(), report or Quiet())


def blob(hub: Hub) -> Path:
    sha256 = hub.repos["mock/repo"].files["m-Q4_K_M.gguf"].sha256
    return hf_cache.repo_folder("mock/repo") / "blobs" / sha256


def test_space_is_checked_before_the_first_byte(hub: Hub) -> None:
    """HUB-04"""
    hub.claimed_size = 10**18
    with pytest.raises(DownloadError) as caught:
        pull()
    assert caught.value.message.startswith(f"not enough disk space in {blob(hub).parent}: needs 1000000.0 TB, ")
    assert caught.value.message.endswith(" free")
    assert hub.requests("/resolve/") == []
    assert not list(hf_cache.cache_dir().rglob("*.incomplete"))


def test_a_disk_that_fills_up_keeps_the_part(hub: Hub, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB-04: one line, nothing registered, the part kept; with some space again it goes on there."""
    monkeypatch.setenv("HF_HOME", str(small_disk / "hf"))
    hub.fail("/cdn/", pause_s=0.008)
    filler = small_disk / "filler"

    def fill() -> None:
        while hub.sent("/cdn/") < SIZE // 3:
            threading.Event().wait(0.005)
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    filling = threading.Thread(target=fill)
    filling.start()
    with pytest.raises(DownloadError) as caught:
        pull()
    filling.join()
    assert caught.value.message == f"the disk is full: {blob(hub).parent} has no room for the rest of 6.0 MB"
    assert not blob(hub).exists()
    assert hf.locate(Want("mock/repo", parse_ref("mock/repo")), Store()) is None
    kept = kept_bytes(blob(hub), SIZE)
    assert 0 < kept < SIZE
    with pytest.raises(DownloadError, match="not enough disk space"):
        pull()
    filler.unlink()
    before = hub.sent("/cdn/")
    assert pull().paths[0].read_bytes() == MODEL
    assert hub.sent("/cdn/") - before == SIZE - kept


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the length of files")
def test_a_file_too_long_for_the_file_system(hub: Hub, tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    code = limit + kills.PULL
    run = subprocess.run([sys.executable, "-c", code, "mock/repo"], capture_output=True, text=True, timeout=60)
    assert "DownloadError" in run.stderr
    assert "cannot hold a file of 6.0 MB" in run.stderr


def test_a_cache_that_is_no_folder(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("")
    with pytest.raises(DownloadError, match=r"writing to .* failed: "):
        pull()


class Interrupting(Quiet):
    """Ctrl-C once so much is done."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at: int | None = at

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        if self.at is not None and done >= self.at:
            self.at = None
            _thread.interrupt_main()


def test_ctrl_c_keeps_the_part(hub: Hub) -> None:
    hub.fail("/cdn/", pause_s=0.01)
    with pytest.raises(Interrupted) as caught:
        pull(Interrupting(SIZE // 3))
    kept = kept_bytes(blob(hub), SIZE)
    assert kept >= SIZE // 3
    assert caught.value.message.endswith("of 6.0 MB of m-Q4_K_M.gguf are kept")
    assert caught.value.exit_status == 130
    hub.faults.clear()
    asked = len(hub.requests("/cdn/"))
    assert pull().paths[0].read_bytes() == MODEL
    ranges = [r.headers["range"].removeprefix("bytes=").split("-") for r in hub.requests("/cdn/")[asked:]]
    assert sum(int(last) - int(first) + 1 for first, last in ranges) == SIZE - kept


def test_ctrl_c_while_the_server_says_nothing(hub: Hub) -> None:
    hub.fail("/cdn/", stall_after=100_000)
    with pytest.raises(Interrupted):
        pull(Interrupting(50_000))
    assert kept_bytes(blob(hub), SIZE) > 0
