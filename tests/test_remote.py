from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.errors import ModelFileError
from llmrun.gguf.header import open_header, read_header
from llmrun.models import http
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.remote import open_remote
from tests.hub_server import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(http, "SHORT_WAITS_S", (0.0, 0.0))
    with Hub() as hub:
        yield hub


def test_a_remote_header_is_read_without_the_weights(hub: Hub, tiny_model: Path) -> None:
    weights = tiny_model.read_bytes() + bytes(20_000_000)
    hub.plain["/m.gguf"] = (weights, {})
    with open_remote(f"{hub.url}/m.gguf") as remote:
        size = remote.facts().size_bytes
        assert size == len(weights)
        header = read_header(remote.read, size, "m.gguf")
        assert remote.fetched_bytes < 2_000_000
    local = open_header(tiny_model)
    assert header.tensors == local.tensors
    assert set(header.metadata) == set(local.metadata)


def test_breaks_are_tried_again(hub: Hub) -> None:
    hub.plain["/m"] = (bytes(range(256)) * 100, {})
    hub.fail("/m", times=1, cut_after=10)
    hub.fail("/m", times=1, status=502)
    with open_remote(f"{hub.url}/m") as remote:
        assert remote.read(300, 4) == bytes([44, 45, 46, 47])
        assert remote.read(25_598, 10) == bytes([254, 255])
        assert remote.read(25_600, 10) == b""
        assert remote.read(0, 0) == b""


def test_a_server_without_ranges(hub: Hub) -> None:
    content = bytes(range(256)) * 1000
    hub.plain["/m"] = (content, {})
    hub.fail("/m", no_ranges=True)
    with open_remote(f"{hub.url}/m") as remote:
        assert remote.facts().size_bytes == len(content)
        assert remote.read(1000, 5) == content[1000:1005]
        with pytest.raises(NetworkError, match="whole files only"):
            remote.read(100 << 20, 5)


def test_what_is_no_gguf_is_told_by_its_first_bytes(hub: Hub) -> None:
    hub.plain["/m"] = (b"<html>" * 1000, {})
    with open_remote(f"{hub.url}/m") as remote, pytest.raises(ModelFileError, match="HTML page"):
        read_header(remote.read, 6000, "m")


def test_refusals_are_passed_on(hub: Hub) -> None:
    with open_remote(f"{hub.url}/absent") as remote, pytest.raises(StatusError) as caught:
        remote.read(0, 10)
    assert caught.value.status == 404
