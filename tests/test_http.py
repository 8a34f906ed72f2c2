import random
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from llmrun.errors import LlmrunError
from llmrun.models import download, http
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.refs import parse_ref
from llmrun.models.sources import Found, Want, hf
from llmrun.models.store import Store
from llmrun.report import Quiet
from tests.hub_server import Hub
from tests.proxy import Proxy

MODEL = b"GGUF" + random.Random(3).randbytes(1_500_000)
CAN_BE_SET = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", *http.CA_VARIABLES)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in CAN_BE_SET:
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.005)
    monkeypatch.setattr(http, "SHORT_WAITS_S", (0.0, 0.0))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as hub:
        hub.add("mock/repo", {"m-Q4_K_M.gguf": MODEL})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    """A company's own; its certificate is in ca.pem."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return authority


@pytest.fixture
def tls_hub(monkeypatch: pytest.MonkeyPatch, authority: trustme.CA) -> Iterator[Hub]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    with Hub(context) as hub:
        hub.add("mock/repo", {"m-Q4_K_M.gguf": MODEL})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def pull() -> Found:
    found = hf.fetch(Want("mock/repo", parse_ref("mock/repo")), Store(), Quiet())
    assert found.paths[0].read_bytes() == MODEL
    return found


def failure() -> LlmrunError:
    with pytest.raises(LlmrunError) as caught:
        pull()
    assert "\n" not in caught.value.message
    return caught.value


def test_plain_requests_go_through_the_proxy(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB-03"""
    with Proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        pull()
    assert f"GET {hub.url}/api/models/mock/repo" in proxy.log
    assert sum("/resolve/" in line for line in proxy.log) == 1
    assert sum("/cdn/" in line for line in proxy.log) == len(hub.requests("/cdn/")) > 1


def test_no_proxy_is_honoured(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """HUB-03"""
    with Proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        pull()
    assert {line.split("/")[2].partition(":")[0] for line in proxy.log} == {"localhost"}


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_tls_through_a_proxy_with_a_companys_certificate(
    tls_hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    """HUB-03"""
    with Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv(variable, str(tmp_path / "ca.pem"))
        pull()
    assert f"CONNECT {tls_hub.address}" in proxy.log
    assert f"CONNECT {tls_hub.cdn_address}" in proxy.log


def test_an_unknown_certificate_is_one_line(tls_hub: Hub) -> None:
    """HUB-03"""
    fault = failure()
    assert fault.message == (
        f"the certificate of {tls_hub.address} cannot be verified: unable to get local issuer certificate"
    )
    assert "SSL_CERT_FILE (or REQUESTS_CA_BUNDLE)" in fault.hint
    assert len(tls_hub.log) == 0


def test_a_certificate_for_another_host(
    monkeypatch: pytest.MonkeyPatch, authority: trustme.CA, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("other.example").configure_cert(context)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with Hub(context) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert "cannot be verified: IP address mismatch" in failure().message


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_setting_that_cannot_be_used(
    tls_hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "wrong.pem"
    if content:
        path.write_text(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(path))
    assert failure().message.startswith(f"REQUESTS_CA_BUNDLE names {path}, which cannot be used: ")


def test_a_proxy_that_refuses(tls_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy(refuse=407) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://me:geheim@"))
        fault = failure()
    assert fault.message.startswith(f"the proxy refused the way to {tls_hub.address}: 407")
    assert "HTTPS_PROXY" in fault.hint


def test_a_proxy_that_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://me:geheim@127.0.0.1:9")
    fault = failure()
    assert "geheim" not in f"{fault.message}{fault.hint}"
    assert fault.message == f"{hub.address} cannot be reached through the proxy 127.0.0.1:9: connection refused"
    assert "HTTP_PROXY" in fault.hint


@pytest.mark.parametrize("value", ["socks5://127.0.0.1:1080", "gopher://me:geheim@x", "http://["])
def test_proxy_settings_that_cannot_work(hub: Hub, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    fault = failure()
    assert isinstance(fault, NetworkError)
    assert "geheim" not in f"{fault.message}{fault.hint}"
    assert "PROXY" in fault.message + fault.hint


def test_encrypted_addresses_do_not_lead_to_open_ones(
    tls_hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    tls_hub.cdn_url = "http://localhost:9"
    assert "redirects to http://localhost:9/cdn/" in failure().message


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("-1", None), ("1e9", None)],
)
def test_retry_after(hub: Hub, header: str, seconds: float | None) -> None:
    hub.fail("/x", status=429, headers={"Retry-After": header})
    with http.open_client() as client, pytest.raises(StatusError) as caught:  # noqa: SIM117
        with http.get(client, f"{hub.url}/x", {}) as response:
            raise StatusError(response)
    assert caught.value.wait_s == seconds


def test_urls_are_shown_without_secrets() -> None:
    shown = http.shown_url("https://me:geheim@host:8443/a/m.gguf?Signature=geheim#geheim\x1b[2J")
    assert shown == "https://host:8443/a/m.gguf"
    assert http.shown_url("https://host/\x1b[2J") == "https://host/\\x1b[2J"
