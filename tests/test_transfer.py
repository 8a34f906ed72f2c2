import hashlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.errors import ModelFileError
from llmrun.models import download
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.parts import Part, SpanWriter, kept_bytes, part_files
from llmrun.models.transfer import fetch
from llmrun.models.wanted import Wanted, WrongContent
from llmrun.report import Quiet, size_text
from tests.hub_server import Hub

SIZE = 6_500_000
MODEL = b"GGUF" + random.Random(1).randbytes(SIZE - 4)
FILE = "/mock/repo/resolve/main/m.gguf"


class Seen(Quiet):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, int, int | None]] = []

    def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
        self.steps.append((task, done, total))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.005)
    with Hub() as hub:
        hub.add("mock/repo", {"m.gguf": MODEL})
        yield hub


def wanted(hub: Hub, folder: Path, path: str = FILE, content: bytes = MODEL, is_gguf: bool = True) -> Wanted:
    digest = hashlib.sha256(content).hexdigest()
    return Wanted(hub.url + path, folder / digest, len(content), digest, folder / "lock", is_gguf)


def pull(hub: Hub, folder: Path, **settings: object) -> Seen:
    report = Seen()
    file = wanted(hub, folder)
    fetch([file], "m.gguf", report, stall_s=5.0, **settings)  # type: ignore[arg-type]
    assert file.final.read_bytes() == MODEL
    assert left(folder) == []
    return report


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.incomplete")]


def test_a_file_is_fetched_once_in_ranges_on_four_connections(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", pause_s=0.002)
    report = pull(hub, tmp_path)
    assert hub.sent() == SIZE
    assert len(hub.requests("/resolve/")) == 1
    assert {r.status for r in hub.requests("/cdn/")} == {206}
    assert hub.most_at_once == 4
    done = [done for task, done, total in report.steps if task == "m.gguf" and total == SIZE]
    assert done == sorted(done)
    assert done[-1] == SIZE
    pull(hub, tmp_path)
    assert hub.sent() == SIZE


def test_connections_that_drop_are_continued_where_they_broke(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", cut_after=150_000)
    report = pull(hub, tmp_path)
    assert hub.sent() == SIZE
    assert report.notes == []


def test_resets_server_errors_and_stalls_are_retried(hub: Hub, tmp_path: Path) -> None:
    """HUB-03: a stalled transfer times out and is retried."""
    hub.fail("/cdn/", times=2, reset=True, cut_after=100_000)
    hub.fail("/cdn/", times=2, status=503)
    hub.fail("/cdn/", times=2, stall_after=200_000)
    report = Seen()
    fetch([wanted(hub, tmp_path)], "m.gguf", report, stall_s=0.3)
    assert wanted(hub, tmp_path).final.read_bytes() == MODEL
    assert f"{hub.cdn_address} has trouble of its own (503): trying again" in report.notes


def test_a_run_goes_on_where_an_earlier_one_ended(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", times=3, cut_after=700_000)
    hub.fail("/cdn/", status=500)
    with pytest.raises(StatusError) as caught:
        pull(hub, tmp_path)
    assert caught.value.status == 500
    file, before = wanted(hub, tmp_path), hub.sent()
    kept = kept_bytes(file.final, SIZE)
    assert kept >= 700_000
    assert caught.value.hint == f"try again later; {size_text(kept)} of 6.5 MB are kept"
    assert not file.final.exists()
    hub.faults.clear()
    report = pull(hub, tmp_path)
    assert hub.sent() - before == SIZE - kept
    assert report.steps[0][1] >= kept


def test_a_server_without_ranges_gets_one_connection(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", no_ranges=True)
    hub.fail("/cdn/", times=0)
    report = pull(hub, tmp_path)
    assert report.notes == ["the server sends whole files only: one connection, and an interrupted file starts again"]


def test_a_broken_connection_without_ranges_starts_again(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", times=2, no_ranges=True, cut_after=300_000)
    hub.fail("/cdn/", no_ranges=True)
    pull(hub, tmp_path)


def test_wrong_bytes_are_caught_and_fetched_again_in_one_piece(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", flip=5_000_000, only_ranges=True)
    report = pull(hub, tmp_path)
    assert len(report.notes) == 1
    assert "m.gguf arrived damaged: checksum" in report.notes[0]
    assert hub.requests("/cdn/")[-1].status == 200


def test_wrong_bytes_twice_are_an_error_and_nothing_stays(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", flip=5_000_000)
    with pytest.raises(WrongContent, match="arrived damaged"):
        pull(hub, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_wrong_part_from_an_earlier_run_is_caught(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path)
    part = Part(file.final, SIZE)
    writer = SpanWriter(part)
    writer.begin(part.missing()[1])
    writer.write(b"x" * 100_000)
    writer.checkpoint()
    writer.close()
    part.close()
    report = pull(hub, tmp_path)
    assert "arrived damaged" in report.notes[0]


def test_range_not_satisfiable_is_fetched_whole_once(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", times=1, status=416)
    report = pull(hub, tmp_path)
    assert report.notes == ["m.gguf ends before byte 0 at its source; fetching it again"]


@pytest.mark.parametrize("content", [MODEL[:-1], MODEL + b"x"])
def test_a_file_of_another_length_is_refused(hub: Hub, tmp_path: Path, content: bytes) -> None:
    hub.plain[FILE] = (content, {})
    with pytest.raises(WrongContent, match=f"is {len(content)} bytes long at its source, not {SIZE}"):
        pull(hub, tmp_path)
    assert left(tmp_path) == []


def test_a_web_page_in_place_of_the_file(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/resolve/", status=200, headers={"Content-Type": "text/html"}, body=b"<html>Sign in</html>")
    with pytest.raises(NetworkError, match="was answered with a web page"):
        pull(hub, tmp_path)


def test_what_is_no_model_is_refused_at_its_first_bytes(hub: Hub, tmp_path: Path) -> None:
    """SEL-04: checked for the GGUF magic before it is registered."""
    page = b"<!DOCTYPE html>\x1b[2J" + bytes(3_000_000)
    hub.plain["/m.gguf"] = (page, {})
    with pytest.raises(ModelFileError) as caught:
        fetch([wanted(hub, tmp_path, "/m.gguf", page)], "m.gguf", Seen())
    assert caught.value.message == "m.gguf is an HTML page, not a GGUF"
    assert hub.sent() < len(page)
    assert not (tmp_path / hashlib.sha256(page).hexdigest()).exists()


def test_too_many_requests_waits_only_so_long(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/resolve/", times=1, status=429, headers={"Retry-After": "0"})
    report = pull(hub, tmp_path)
    assert report.notes == [f"{hub.address} says there were too many requests (429): trying again"]
    hub.fail("/resolve/", status=429, headers={"Retry-After": "3600"})
    wanted(hub, tmp_path).final.unlink()
    with pytest.raises(StatusError) as caught:
        pull(hub, tmp_path)
    assert caught.value.hint == "try again in 3600 s"
    assert len(hub.requests("/resolve/")) == 3


def test_a_dead_server_ends_in_one_error(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/resolve/", reset=True, cut_after=0)
    hub.fail("/cdn/", reset=True, cut_after=0)
    with pytest.raises(NetworkError, match=f"the connection to {hub.cdn_address} broke"):
        pull(hub, tmp_path)
    assert len(hub.requests("/cdn/")) <= download.CONNECTIONS * download.TRIES


def test_the_token_stays_with_its_host(hub: Hub, tmp_path: Path) -> None:
    pull(hub, tmp_path, headers={"Authorization": "Bearer hf_secret"})
    assert [r.headers["authorization"] for r in hub.requests("/resolve/")] == ["Bearer hf_secret"]
    assert len(hub.requests("/cdn/")) > 4
    assert not any("authorization" in r.headers for r in hub.requests("/cdn/"))


def test_a_signature_that_ends_is_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    hub.signature_lasts = 3
    pull(hub, tmp_path)
    assert len(hub.requests("/resolve/")) > 1
    assert hub.sent() == SIZE


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/m.gguf", "http://[bad/"])
def test_redirects_lead_to_the_web_only(hub: Hub, tmp_path: Path, place: str) -> None:
    hub.fail("/resolve/", status=302, headers={"Location": place})
    with pytest.raises(NetworkError):
        pull(hub, tmp_path)


def test_redirects_in_a_circle_end(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/resolve/", status=302, headers={"Location": FILE})
    with pytest.raises(NetworkError, match="redirects for ever"):
        pull(hub, tmp_path)


def test_a_damaged_journal_starts_anew(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path)
    Part(file.final, SIZE).close()
    data, journal = part_files(file.final)
    for wrong in (b"", b"x" * 40, journal.read_bytes()[:-8] + b"\xff" * 8, journal.read_bytes()[:-3]):
        journal.write_bytes(wrong)
        part = Part(file.final, SIZE)
        assert part.have_bytes == 0
        part.close()
    data.write_bytes(b"short")
    pull(hub, tmp_path)


def test_only_flushed_bytes_are_recorded(tmp_path: Path) -> None:
    part = Part(tmp_path / "f", 40 << 20)
    span = part.missing()[0]
    writer = SpanWriter(part)
    writer.begin(span)
    writer.write(bytes(100))
    assert part.have_bytes == 0
    writer.checkpoint()
    writer.close()
    part.close()
    again = Part(tmp_path / "f", 40 << 20)
    assert again.have_bytes == 100
    again.close()


def test_an_empty_file(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path, "/empty", b"", False)
    hub.plain["/empty"] = (b"", {})
    fetch([file], "empty", Seen())
    assert file.final.read_bytes() == b""


def test_two_processes_make_one_download(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/cdn/", pause_s=0.005)
    file = wanted(hub, tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from llmrun.models.transfer import fetch; from llmrun.models.wanted import Wanted\n"
        "from llmrun.report import Quiet\n"
        "url, final, size, digest, lock = sys.argv[1:]\n"
        "report = Quiet()\n"
        "fetch([Wanted(url, Path(final), int(size), digest, Path(lock))], 'm.gguf', report)\n"
        "print(report.notes)\n"
    )
    arguments = [file.url, str(file.final), str(SIZE), file.digest, str(file.lock)]
    command = [sys.executable, "-c", code, *arguments]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(run.communicate(timeout=60)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert said == ["['another process is fetching m.gguf: waiting for it']\n", "[]\n"]
    assert hub.sent() == SIZE
    assert file.final.read_bytes() == MODEL
