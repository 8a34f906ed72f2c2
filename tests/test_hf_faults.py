import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.errors import DownloadError, UsageError
from llmrun.models.sources import hf, hf_cache
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.hub_pulls import CHECKPOINT, QUANTS, failure, leftovers, mock_hub, model, pull, snapshot, want
from tests.hub_server import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with mock_hub(monkeypatch, tmp_path) as hub:
        yield hub


def test_what_is_no_gguf_inside_is_not_registered(hub: Hub) -> None:
    """SEL-04: the magic is checked before the file counts."""
    hub.add("mock/page", {"m-Q4_0.gguf": b"<html>\x1b[31mnot a model" * 900})
    fault = failure("mock/page:Q4_0")
    assert fault.message == "m-Q4_0.gguf is an HTML page, not a GGUF"
    assert leftovers() == []
    assert hf.locate(want("mock/page:Q4_0"), Store()) is None


def test_five_refusals_have_five_messages(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB-01"""
    hub.add("mock/gated", {"m-Q4_K_M.gguf": model(1)}, gated="manual", token="hf_good")
    page = f"{hub.url}/mock/gated"
    gated = failure("mock/gated:Q4_K_M")
    assert gated.message == "mock/gated is gated: its licence must be accepted first"
    assert gated.hint == f"accept the licence at {page}, then run `hf auth login`, or set HF_TOKEN"
    absent = failure("mock/absent:Q4_K_M")
    assert absent.message == "mock/absent is not on the hub, or is private"
    assert "hf auth login" in absent.hint
    hub.fail("/api/", times=1, status=403)
    assert failure("mock/repo:Q4_K_M").message == "no access to mock/repo (403)"
    missing = failure("hf:mock/repo/m-Q9.gguf")
    assert missing.message == "mock/repo has no file 'm-Q9.gguf'"
    hub.fail("/resolve/", times=1, status=404, headers={"X-Error-Code": "EntryNotFound"})
    missing = failure("mock/repo:Q4_K_M")
    assert missing.message == "mock/repo has no file 'm-Q4_K_M.gguf'"
    assert "m-Q8_0.gguf" in missing.hint
    hub.fail("/api/", times=3, status=429)
    busy = failure("mock/repo:Q4_K_M")
    assert "too many requests (429)" in busy.message
    assert "try again" in busy.hint
    assert leftovers() == []


def test_refusals_with_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB-01: and the token is in no message."""
    hub.add("mock/gated", {"m-Q4_K_M.gguf": model(1)}, gated="manual", token="hf_good")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    gated = failure("mock/gated:Q4_K_M")
    assert gated.message == "mock/gated is gated, and this token does not open it"
    assert gated.hint == f"accept the licence at {hub.url}/mock/gated (the hub says: Access is restricted)"
    assert "this token may not read it" in failure("mock/absent").hint
    credentials = {"X-Error-Message": "Invalid credentials in Authorization header"}
    hub.fail("/api/", times=1, status=401, headers=credentials)
    assert failure("mock/repo").message == "the hub does not know this token"
    disabled = {"X-Error-Message": "Access to this resource is disabled."}
    hub.fail("/api/", times=1, status=403, headers=disabled)
    assert failure("mock/repo").message == "mock/repo is disabled on the hub"
    monkeypatch.setenv("HF_TOKEN", "hf_secret\x01é")
    assert failure("mock/repo").message == "the hub's token holds characters that no token has"
    assert leftovers() == []


def test_the_token_opens_what_it_may_and_goes_nowhere_else(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("mock/gated", {"m-Q4_K_M.gguf": model(1)}, gated="auto", token="hf_secret")
    hub.add("mock/private", {"m-Q4_K_M.gguf": model(2)}, token="hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull("mock/gated")
    pull("mock/private")
    assert all(r.headers.get("authorization") == "Bearer hf_secret" for r in hub.requests("/resolve/"))
    assert len(hub.requests("/cdn/")) == 2
    assert not any("authorization" in r.headers for r in hub.requests("/cdn/"))


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"", b"[]", b'{"siblings": 3}', b'{"sha": "../x"}'])
def test_answers_that_are_not_the_hubs(hub: Hub, body: bytes) -> None:
    hub.fail("/api/", status=200, body=body, headers={"Content-Type": "text/html"})
    fault = failure("mock/repo")
    assert isinstance(fault, DownloadError)
    assert "HF_ENDPOINT" in fault.hint


def test_broken_answers_of_the_api_are_tried_again(hub: Hub) -> None:
    hub.fail("/api/", times=1, status=503)
    hub.fail("/api/", times=1, status=200, headers={"Content-Length": "999", "Connection": "close"})
    pull("mock/repo")
    assert len(hub.requests("/api/")) == 3


def test_an_endpoint_without_a_scheme(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hf-mirror.example")
    assert failure("mock/repo").message == "HF_ENDPOINT is no web address: hf-mirror.example"


def test_checksums_that_would_be_paths_are_refused(hub: Hub) -> None:
    hub.lfs_ids["m-Q8_0.gguf"] = "../../../../evil"
    assert failure("mock/repo:Q8_0").message == "mock/repo: m-Q8_0.gguf has no checksum but '../../../../evil'"
    assert leftovers() == []


def test_etags_are_no_file_names(hub: Hub) -> None:
    hub.fail("/cdn/", status=200, headers={"ETag": '"../../../evil"'}, body=QUANTS["m-Q8_0.gguf"])
    hub.faults[0].headers["Content-Length"] = str(len(QUANTS["m-Q8_0.gguf"]))
    pull("mock/repo:Q8_0")
    assert not any("evil" in name for name in leftovers())


def test_unsafe_file_names_are_passed_over_and_shown_escaped(hub: Hub) -> None:
    names = [
        "../../evil-Q4_0.gguf",
        "/etc/x-Q4_0.gguf",
        "a\x1b[2Jb-Q4_0.gguf",
        "n\nm-Q4_0.gguf",
        "r\u202eFUGG-Q4_0.gguf",
    ]
    hub.add("mock/evil", {name: model(1) for name in names} | {"m-Q8_0.gguf": model(2)})
    report = Quiet()
    assert pull("mock/evil", report).paths[0].name == "m-Q8_0.gguf"
    passed = [note for note in report.notes if "unsafe name" in note]
    assert len(passed) == len(names)
    assert all(note.isascii() and note.isprintable() for note in passed)
    assert not list(hf_cache.cache_dir().parent.rglob("*evil-*"))


def test_a_file_without_checksum_is_checked_by_length(hub: Hub) -> None:
    hub.no_blobs = True
    report = Quiet()
    assert pull("mock/repo:Q8_0", report).paths[0].read_bytes() == QUANTS["m-Q8_0.gguf"]
    assert report.notes == ["the hub gives no checksum for m-Q8_0.gguf: only its length is checked"]
    assert pull("mock/repo:Q8_0").paths[0].parent == snapshot(hub)


def test_odd_answers_of_the_api_are_no_crash(hub: Hub) -> None:
    commit = "a" * 40
    files = [{"rfilename": 3}, {"rfilename": "m-Q8_0.gguf", "size": "big", "blobId": 7}, {"rfilename": ""}]
    info = {"id": "../../x", "sha": commit, "siblings": files}
    hub.fail("/api/", status=200, body=json.dumps(info).encode(), headers={"Connection": "close"})
    assert failure("mock/repo:Q8_0").message == "mock/repo: m-Q8_0.gguf has no checksum but '7'"
    assert leftovers() == []


def test_small_files_are_checked_against_their_git_id(hub: Hub) -> None:
    hub.add("mock/raw", CHECKPOINT)
    hub.fail("config.json", flip=0)
    assert failure("mock/raw").message.startswith("config.json arrived damaged")


def test_the_catalogues_checksum_decides(hub: Hub) -> None:
    good = hub.repos["mock/repo"].files["m-Q8_0.gguf"].sha256
    pull("mock/repo:Q8_0", sha256=good)
    with pytest.raises(DownloadError, match="its checksum is another"):
        pull("mock/repo:Q4_K_M", sha256=good)


def test_nothing_but_the_repo_is_asked_for(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """No telemetry, and a server's warnings do not reach the terminal."""
    hub.fail("/api/", skip=99)
    with caplog.at_level(logging.WARNING):
        pull("mock/repo:Q8_0")
    assert {r.path.partition("?")[0].split("/")[1] for r in hub.log} == {"api", "mock", "cdn"}
    assert caplog.records == []


def test_bad_settings_of_the_hub_are_usage_errors(hub: Hub) -> None:
    assert isinstance(failure("mock/repo:Q2_K"), UsageError)
