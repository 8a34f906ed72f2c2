import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.errors import DownloadError, ModelFileError
from llmrun.models import download, http
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.refs import UrlRef
from llmrun.models.sources import Found, Want, url
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.hub_server import Hub

MODEL = b"GGUF" + random.Random(5).randbytes(3_000_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(http, "SHORT_WAITS_S", (0.0, 0.0))
    with Hub() as hub:
        hub.plain["/m.gguf"] = (MODEL, {"ETag": '"one"'})
        yield hub


def pull(hub: Hub, path: str = "/m.gguf", report: Quiet | None = None, sha256: str | None = None) -> Found:
    address = hub.url + path
    return url.fetch(Want(address, UrlRef(address), sha256), Store(), report or Quiet())


def test_a_link_lands_in_the_store(hub: Hub) -> None:
    found = pull(hub)
    assert found.paths[0].read_bytes() == MODEL
    assert found.source == f"{hub.url}/m.gguf"
    entry = Store().find(f"{hub.url}/m.gguf")
    assert entry is not None
    assert [(file.name, file.size_bytes) for file in entry.files] == [("m.gguf", len(MODEL))]
    sent = hub.sent()
    assert pull(hub) == found
    assert hub.sent() == sent


def test_an_interrupted_link_goes_on_where_it_was(hub: Hub) -> None:
    hub.fail("/m.gguf", skip=1, times=2, cut_after=1_000_000)
    hub.fail("/m.gguf", skip=1, status=404)
    with pytest.raises(StatusError):
        pull(hub)
    assert Store().entries() == []
    hub.faults.clear()
    before = hub.sent()
    assert pull(hub).paths[0].read_bytes() == MODEL
    assert hub.sent() - before < len(MODEL) - 900_000


@pytest.mark.parametrize("headers", [{"ETag": '"two"'}, {}])
def test_a_file_that_changed_starts_anew(hub: Hub, headers: dict[str, str]) -> None:
    hub.plain["/m.gguf"] = (MODEL, {"ETag": '"one"'} if headers else {})
    hub.fail("/m.gguf", skip=1, times=2, cut_after=1_000_000)
    hub.fail("/m.gguf", skip=1, status=404)
    with pytest.raises(StatusError):
        pull(hub)
    hub.faults.clear()
    other = MODEL[:4] + MODEL[4:][::-1]
    hub.plain["/m.gguf"] = (other, headers)
    assert pull(hub).paths[0].read_bytes() == other


def test_split_links_come_whole(hub: Hub) -> None:
    """SEL-03"""
    parts = {f"/x/m-0000{n}-of-00002.gguf": b"GGUF" + bytes([n]) * 500 for n in (1, 2)}
    hub.plain |= {path: (content, {}) for path, content in parts.items()}
    found = pull(hub, "/x/m-00001-of-00002.gguf")
    assert [path.read_bytes() for path in found.paths] == list(parts.values())
    del hub.plain["/x/m-00002-of-00002.gguf"]
    with pytest.raises(StatusError):
        pull(hub, "/x/m-00002-of-00002.gguf")


def test_a_page_is_not_stored_as_a_model(hub: Hub) -> None:
    """SEL-04"""
    hub.plain["/page"] = (b"<html>\x1b[2J" * 100_000, {"Content-Type": "text/html"})
    with pytest.raises(ModelFileError) as caught:
        pull(hub, "/page")
    assert caught.value.message == "page is an HTML page, not a GGUF"
    assert hub.sent() < 100_000
    assert not list(Store().root.rglob("*.incomplete"))


def test_no_length_no_download(hub: Hub) -> None:
    hub.fail("/m.gguf", no_ranges=True, no_length=True)
    with pytest.raises(DownloadError, match="does not say how long"):
        pull(hub)


def test_the_catalogues_checksum_is_checked(hub: Hub) -> None:
    import hashlib

    with pytest.raises(DownloadError, match="arrived damaged"):
        pull(hub, sha256="0" * 64)
    assert Store().entries() == []
    assert pull(hub, sha256=hashlib.sha256(MODEL).hexdigest()).paths[0].read_bytes() == MODEL


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="nice.gguf"', "nice.gguf"),
        ("attachment; filename*=UTF-8''d%C3%A9j%C3%A0.gguf", "déjà.gguf"),
        ('attachment; filename="../../etc/evil.gguf"', "evil.gguf"),
        ('attachment; filename=".."', "m.gguf"),
        ("attachment; filename*=UTF-8''a%1B%5B2J.gguf", "m.gguf"),
    ],
)
def test_names_from_servers(hub: Hub, disposition: str, name: str) -> None:
    hub.plain["/m.gguf"] = (MODEL[:4000], {"Content-Disposition": disposition})
    pull(hub)
    assert [file.name for entry in Store().entries() for file in entry.files] == [name]


def test_an_offer_reads_the_head_only(hub: Hub) -> None:
    address = f"{hub.url}/m.gguf"
    offer = url.offer(Want(address, UrlRef(address)), Quiet())
    assert [(file.name, file.size_bytes) for file in offer.files] == [("m.gguf", len(MODEL))]
    with url.reader(offer.files[0]) as reader:
        assert reader.read(1_000_000, 5) == MODEL[1_000_000:1_000_005]
    assert hub.sent() == 1024 + 5


def test_passwords_are_in_no_message(hub: Hub) -> None:
    address = f"http://me:geheim@{hub.address}/m.gguf?key=geheim"
    hub.fail("/m.gguf", times=1, status=403)
    with pytest.raises(StatusError) as caught:
        url.fetch(Want("x", UrlRef(address)), Store(), Quiet())
    assert caught.value.message == f"{hub.address} refuses access to http://{hub.address}/m.gguf (403)"
    url.fetch(Want("x", UrlRef(address)), Store(), Quiet())
    assert hub.log[-1].headers["authorization"].startswith("Basic ")


def test_an_address_that_answers_nothing(hub: Hub) -> None:
    address = "http://127.0.0.1:9/m.gguf"
    with pytest.raises(NetworkError) as caught:
        url.fetch(Want(address, UrlRef(address)), Store(), Quiet())
    assert caught.value.message == "127.0.0.1:9 cannot be reached: connection refused"


def test_the_store_does_not_list_a_download_under_way(hub: Hub, tmp_path: Path) -> None:
    hub.fail("/m.gguf", skip=1, status=500)
    with pytest.raises(StatusError):
        pull(hub)
    assert Store().entries() == []
    assert url.locate(Want("x", UrlRef(f"{hub.url}/m.gguf")), Store()) is None
