import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.errors import NotFoundError
from llmrun.models.refs import HubRef
from llmrun.models.sources import Found, hf, hf_cache
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.hub_pulls import CHECKPOINT, QUANTS, failure, mock_hub, model, pull, snapshot, want
from tests.hub_server import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with mock_hub(monkeypatch, tmp_path) as hub:
        yield hub


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


def test_a_repo_of_safetensors_comes_as_a_checkpoint(hub: Hub) -> None:
    hub.add("mock/raw", CHECKPOINT)
    offer = hf.offer(want("mock/raw"), Quiet())
    assert offer.kind == "checkpoint"
    found = pull("mock/raw")
    assert found == Found((snapshot(hub, "mock/raw"),), "checkpoint", "mock/raw")
    assert sorted(path.name for path in found.paths[0].iterdir()) == sorted(list(CHECKPOINT)[:6])
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
    assert sorted(path.name for path in folder.iterdir()) == sorted(list(CHECKPOINT)[:6])
    with pytest.raises(NotFoundError, match="no whole safetensors checkpoint"):
        hf.fetch_checkpoint(HubRef("mock/repo"), Quiet())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.log.clear()
    assert hf.fetch_checkpoint(ref, Quiet()) == folder
    assert hub.log == []


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
    assert sorted(path.name for path in pull("mock/raw").paths[0].iterdir()) == sorted(list(CHECKPOINT)[:6])
    sizes = [path.stat().st_size for path in hf_cache.repo_folder("mock/split").rglob("*.gguf")]
    assert sum(sizes) == sum(map(len, parts.values()))
    assert list((hf_cache.repo_folder("mock/split") / "blobs").iterdir()) == []
    sent = hub.sent("/cdn/")
    assert pull("mock/split") == found
    assert hub.sent("/cdn/") == sent
