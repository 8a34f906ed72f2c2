import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.errors import DownloadError, LlmrunError, NotFoundError, UsageError
from llmrun.models import download, http
from llmrun.models.refs import HubRef, parse_ref
from llmrun.models.sources import Found, Want, hf, hf_cache
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.hub_server import Hub


def model(seed: int, size: int = 40_000) -> bytes:
    return b"GGUF" + random.Random(seed).randbytes(size)


QUANTS = {f"m-{quant}.gguf": model(n) for n, quant in enumerate(("Q4_K_M", "Q4_K_S", "Q8_0"))}
README = b"# A model\n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(http, "SHORT_WAITS_S", (0.0, 0.0))
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        hub.add("mock/repo", QUANTS | {"README.md": README, "mmproj-F16.gguf": model(9)})
        yield hub


def want(text: str, **more: object) -> Want:
    return Want(text, parse_ref(text), **more)  # type: ignore[arg-type]


def pull(text: str, report: Quiet | None = None, **more: object) -> Found:
    return hf.fetch(want(text, **more), Store(), report or Quiet())


def snapshot(hub: Hub, repo: str = "mock/repo") -> Path:
    return hf_cache.repo_folder(repo) / "snapshots" / hub.repos[repo].commit


def failure(text: str) -> LlmrunError:
    with pytest.raises(LlmrunError) as caught:
        pull(text)
    assert "hf_secret" not in f"{caught.value.message} {caught.value.hint} {caught.value!r}"
    return caught.value


def leftovers() -> list[str]:
    folder = hf_cache.cache_dir()
    return [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_model_lands_in_the_cache_that_the_hubs_own_client_reads(hub: Hub) -> None:
    found = pull("mock/repo:q4_k_m")
    assert found == Found((snapshot(hub) / "m-Q4_K_M.gguf",), "gguf", "mock/repo:Q4_K_M")
    assert found.paths[0].read_bytes() == QUANTS["m-Q4_K_M.gguf"]
    blob = hub.repos["mock/repo"].files["m-Q4_K_M.gguf"].sha256
    assert found.paths[0].readlink() == Path("../../blobs") / blob

    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    cache = hf_cache.cache_dir()
    assert try_to_load_from_cache("mock/repo", "m-Q4_K_M.gguf", cache_dir=cache) == str(found.paths[0])
    scan = scan_cache_dir(cache)
    assert [repo.repo_id for repo in scan.repos] == ["mock/repo"]
    assert not scan.warnings
    assert not scan.incomplete_files


def test_what_is_here_is_asked_about_once_and_not_fetched_again(hub: Hub) -> None:
    pull("mock/repo:Q8_0")
    hub.log.clear()
    report = Quiet()
    assert pull("mock/repo:Q8_0", report).paths[0].name == "m-Q8_0.gguf"
    assert [request.path.partition("?")[0] for request in hub.log] == ["/api/models/mock/repo"]
    assert report.notes == []


def test_a_file_that_the_hubs_client_fetched_is_used(hub: Hub) -> None:
    from huggingface_hub import hf_hub_download

    cache = hf_cache.cache_dir()
    path = hf_hub_download("mock/repo", "m-Q8_0.gguf", cache_dir=cache, endpoint=hub.url)
    sent = hub.sent("/cdn/")
    assert str(pull("mock/repo:Q8_0").paths[0]) == path
    assert hub.sent("/cdn/") == sent
    blob = hub.repos["mock/repo"].files["m-Q8_0.gguf"].sha256
    assert hf_cache.lock_path(hf_cache.repo_folder("mock/repo"), blob).is_file()


def test_a_blob_in_xets_shared_store_is_used(hub: Hub) -> None:
    """Its `blobs/<etag>` is itself a link."""
    file = hub.repos["mock/repo"].files["m-Q8_0.gguf"]
    shared = hf_cache.cache_dir() / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    shared.write_bytes(file.content)
    blob = hf_cache.repo_folder("mock/repo") / "blobs" / file.sha256
    blob.parent.mkdir(parents=True)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    assert pull("mock/repo:Q8_0").paths[0].resolve() == shared
    assert hub.sent("/cdn/") == 0


def test_a_new_commit_shares_the_files_that_stayed(hub: Hub) -> None:
    pull("mock/repo:Q8_0")
    old = snapshot(hub)
    hub.add("mock/repo", QUANTS | {"README.md": b"# Changed\n"})
    found = pull("mock/repo:Q8_0")
    assert found.paths[0].parent == snapshot(hub) != old
    assert hub.sent("/cdn/") == len(QUANTS["m-Q8_0.gguf"])


def test_a_blob_of_the_wrong_size_is_replaced(hub: Hub) -> None:
    path = pull("mock/repo:Q8_0").paths[0]
    path.resolve().write_bytes(b"GGUF")
    assert pull("mock/repo:Q8_0").paths[0].read_bytes() == QUANTS["m-Q8_0.gguf"]


def test_split_parts_in_a_subfolder_come_whole(hub: Hub) -> None:
    """SEL-03: all parts, and no others, with one progress display."""
    parts = {f"Q3_K_M/m-Q3_K_M-0000{n}-of-00003.gguf": model(20 + n, 90_000 * n) for n in (1, 2, 3)}
    others = {f"Q8_0/m-Q8_0-0000{n}-of-00002.gguf": model(30 + n) for n in (1, 2)}
    hub.add("mock/split", parts | others)
    steps: list[tuple[str, int, int | None]] = []

    class Seen(Quiet):
        def progress(self, task: str, done: int, total: int | None, unit: str = "B") -> None:
            steps.append((task, done, total))

    found = pull("mock/split:Q3_K_M", Seen())
    assert [path.relative_to(snapshot(hub, "mock/split")).as_posix() for path in found.paths] == list(parts)
    assert [path.read_bytes() for path in found.paths] == list(parts.values())
    size = sum(map(len, parts.values()))
    assert hub.sent("/cdn/") == size
    pulls = [(done, total) for task, done, total in steps if task == "mock/split:Q3_K_M"]
    assert {total for _, total in pulls} == {size}
    assert pulls == sorted(pulls)
    assert hf.locate(want("mock/split:Q3_K_M"), Store()) == found
    found.paths[1].unlink()
    assert hf.locate(want("mock/split:Q3_K_M"), Store()) is None


def test_the_same_file_name_in_two_repos_stays_two_models(hub: Hub) -> None:
    """SEL-04"""
    hub.add("a/repo", {"m-Q4_0.gguf": model(1)})
    hub.add("b/repo", {"m-Q4_0.gguf": model(2)})
    assert pull("a/repo:Q4_0").paths[0].read_bytes() == model(1)
    assert pull("b/repo:Q4_0").paths[0].read_bytes() == model(2)
    assert pull("a/repo:Q4_0").paths[0].read_bytes() == model(1)


@pytest.mark.parametrize(
    "text",
    [
        "{hub}/mock/repo/blob/main/m-Q8_0.gguf",
        "{hub}/mock/repo/resolve/main/m-Q8_0.gguf?download=true",
        "https://huggingface.co/mock/repo/resolve/main/m-Q8_0.gguf",
        "hf.co/mock/repo:Q8_0",
        "hf://mock/repo:q8_0",
        "hf:mock/repo/m-Q8_0.gguf",
    ],
)
def test_every_form_of_address_is_the_same_file(hub: Hub, text: str) -> None:
    """SEL-04"""
    assert pull(text.format(hub=hub.url)).paths == (snapshot(hub) / "m-Q8_0.gguf",)


def test_what_is_no_gguf_inside_is_not_registered(hub: Hub) -> None:
    """SEL-04: the magic is checked before the file counts."""
    hub.add("mock/page", {"m-Q4_0.gguf": b"<html>\x1b[31mnot a model" * 900})
    fault = failure("mock/page:Q4_0")
    assert fault.message == "m-Q4_0.gguf is an HTML page, not a GGUF"
    assert leftovers() == []
    assert hf.locate(want("mock/page:Q4_0"), Store()) is None


def test_case_makes_no_second_copy(hub: Hub) -> None:
    """SEL-01: the hub sends another spelling to the real name."""
    first = pull("mock/repo:Q8_0")
    assert pull("MOCK/Repo:Q8_0") == first
    assert hf.locate(want("Mock/REPO:Q8_0"), Store()) == first
    assert hub.sent("/cdn/") == len(QUANTS["m-Q8_0.gguf"])


def test_no_quant_named_takes_q4_k_m_or_says_what(hub: Hub) -> None:
    report = Quiet()
    assert pull("mock/repo", report).source == "mock/repo:Q4_K_M"
    assert report.notes == []
    hub.add("mock/other", {"m-Q6_K.gguf": model(1), "m-Q8_0.gguf": model(2, 900_000)})
    assert pull("mock/other", report, fit_bytes=500_000).source == "mock/other:Q6_K"
    assert len(report.notes) == 1
    assert "Q6_K" in report.notes[0]


def test_a_revision(hub: Hub) -> None:
    commit = hub.repos["mock/repo"].commit
    assert pull(f"mock/repo@{commit}:Q8_0").paths[0].parent.name == commit
    assert not (hf_cache.repo_folder("mock/repo") / "refs").exists()
    assert failure("mock/repo@v9:Q8_0").message == "mock/repo has no revision 'v9'"


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


def test_offline_uses_what_is_here_without_asking(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pull("mock/repo:Q8_0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.log.clear()
    report = Quiet()
    assert pull("mock/repo:Q8_0", report) == found
    assert report.notes == ["mock/repo:Q8_0: here (not checked, offline)"]
    fault = failure("mock/repo:Q4_K_M")
    assert fault.message == "mock/repo:Q4_K_M is not here, and this machine is set to offline (HF_HUB_OFFLINE)"
    assert fault.hint == "here are, of this repo: Q8_0"
    assert failure("other/repo").hint == "in the cache are: mock/repo"
    assert hub.log == []


def test_without_network_what_is_here_serves(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pull("mock/repo:Q8_0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    report = Quiet()
    assert pull("mock/repo:Q8_0", report) == found
    reason = "127.0.0.1:9 cannot be reached: connection refused"
    assert report.notes == [f"mock/repo:Q8_0: here (not checked, offline: {reason})"]
    fault = failure("mock/repo:Q4_K_M")
    assert fault.message == reason
    assert fault.hint.endswith("here are, of this repo: Q8_0")


def test_locate_finds_other_commits_and_asks_nobody(hub: Hub) -> None:
    found = pull("mock/repo:Q8_0")
    hub.add("mock/repo", QUANTS | {"README.md": b"# New\n"})
    pull("mock/repo:Q4_K_M")
    hub.log.clear()
    assert hf.locate(want("mock/repo:Q8_0"), Store()) == found
    assert hf.locate(want("mock/repo"), Store()) == Found(
        (snapshot(hub) / "m-Q4_K_M.gguf",), "gguf", "mock/repo:Q4_K_M"
    )
    assert hf.locate(want("mock/repo:Q4_K_S"), Store()) is None
    assert hub.log == []


CHECKPOINT = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": model(1),
    "model-00002-of-00002.safetensors": model(2),
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{ }",
    "consolidated.safetensors": model(3),
    "onnx/model.onnx": model(4),
    "pytorch_model.bin": model(5),
    "README.md": README,
}


def test_a_repo_of_safetensors_comes_as_a_checkpoint(hub: Hub) -> None:
    hub.add("mock/raw", CHECKPOINT)
    offer = hf.offer(want("mock/raw"), Quiet())
    assert offer.kind == "checkpoint"
    found = pull("mock/raw")
    assert found == Found((snapshot(hub, "mock/raw"),), "checkpoint", "mock/raw")
    assert sorted(path.name for path in found.paths[0].iterdir()) == sorted(list(CHECKPOINT)[:5])
    assert hf.locate(want("mock/raw"), Store()) == found
    hub.add("mock/bin", {"config.json": b"{}", "pytorch_model.bin": model(5)})
    assert isinstance(failure("mock/bin"), NotFoundError)


def test_a_checkpoint_that_the_hubs_client_fetched_is_used(hub: Hub) -> None:
    from huggingface_hub import snapshot_download

    hub.add("mock/raw", CHECKPOINT)
    folder = snapshot_download("mock/raw", cache_dir=hf_cache.cache_dir(), endpoint=hub.url)
    sent = hub.sent("/cdn/")
    assert pull("mock/raw").paths == (Path(folder),)
    assert hub.sent("/cdn/") == sent


def test_a_checkpoint_beside_gguf_files_is_fetched_for_conversion(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("mock/both", CHECKPOINT | QUANTS)
    ref = HubRef("mock/both")
    folder = hf.fetch_checkpoint(ref, Quiet())
    assert sorted(path.name for path in folder.iterdir()) == sorted(list(CHECKPOINT)[:5])
    with pytest.raises(NotFoundError, match="no whole safetensors checkpoint"):
        hf.fetch_checkpoint(HubRef("mock/repo"), Quiet())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.log.clear()
    assert hf.fetch_checkpoint(ref, Quiet()) == folder
    assert hub.log == []


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


def test_an_offer_says_what_would_come(hub: Hub) -> None:
    offer = hf.offer(want("mock/repo:Q8_0"), Quiet())
    file = hub.repos["mock/repo"].files["m-Q8_0.gguf"]
    assert [(f.name, f.size_bytes, f.sha256) for f in offer.files] == [("m-Q8_0.gguf", 40_004, file.sha256)]
    assert hub.sent("/cdn/") == 0
    with hf.reader(offer.files[0]) as reader:
        assert reader.read(0, 10) == file.content[:10]
        assert reader.read(39_999, 100) == file.content[39_999:]
        assert reader.read(50_000, 10) == b""
    assert hub.sent("/cdn/") == 15


def test_the_catalogues_checksum_decides(hub: Hub) -> None:
    good = hub.repos["mock/repo"].files["m-Q8_0.gguf"].sha256
    pull("mock/repo:Q8_0", sha256=good)
    with pytest.raises(DownloadError, match="its checksum is another"):
        pull("mock/repo:Q4_K_M", sha256=good)


def test_without_the_right_to_link_files_are_moved(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB-06"""

    def refuse(*args: object, **settings: object) -> None:
        fault = OSError(22, "a required privilege is not held by the client")
        fault.winerror = 1314  # type: ignore[attr-defined, unused-ignore]
        raise fault

    monkeypatch.setattr(os, "symlink", refuse)
    parts = {f"m-Q4_0-0000{n}-of-00003.gguf": model(n) for n in (1, 2, 3)}
    hub.add("mock/split", parts)
    report = Quiet()
    found = pull("mock/split", report)
    assert report.notes == ["this system allows no symbolic links: the files are kept without them"]
    assert [path.read_bytes() for path in found.paths] == list(parts.values())
    hub.add("mock/raw", CHECKPOINT)
    assert sorted(path.name for path in pull("mock/raw").paths[0].iterdir()) == sorted(list(CHECKPOINT)[:5])
    sizes = [path.stat().st_size for path in hf_cache.repo_folder("mock/split").rglob("*.gguf")]
    assert sum(sizes) == sum(map(len, parts.values()))
    assert list((hf_cache.repo_folder("mock/split") / "blobs").iterdir()) == []
    sent = hub.sent("/cdn/")
    assert pull("mock/split") == found
    assert hub.sent("/cdn/") == sent


def test_nothing_but_the_repo_is_asked_for(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """No telemetry, and a server's warnings do not reach the terminal."""
    hub.fail("/api/", skip=99)
    with caplog.at_level(logging.WARNING):
        pull("mock/repo:Q8_0")
    assert {r.path.partition("?")[0].split("/")[1] for r in hub.log} == {"api", "mock", "cdn"}
    assert caplog.records == []


def test_bad_settings_of_the_hub_are_usage_errors(hub: Hub) -> None:
    assert isinstance(failure("mock/repo:Q2_K"), UsageError)
