"""One HTTP client with this machine's proxies and certificates, and its faults in plain words.

Knows no hub and no file. A token goes to the host it was meant for and to no other, and into no message.
"""

import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, urlsplit

from llmrun.errors import DownloadError
from llmrun.models.names import visible

if TYPE_CHECKING:
    from httpx2 import Client, Response

T = TypeVar("T")

STALL_S = 20.0
MAX_REDIRECTS = 10
LONGEST_WAIT_S = 60.0
SHORT_WAITS_S = (0.5, 1.0)
LONGEST_SHORT_WAIT_S = 5.0
CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_RETRIED = {408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524}


class NetworkError(DownloadError):
    """The server was not reached, or the connection broke; `retry` where another try may help."""

    def __init__(self, message: str, hint: str = "", retry: bool = True) -> None:
        super().__init__(message, hint)
        self.retry = retry


class StatusError(DownloadError):
    """The server answered, with a refusal. `wait_s` is what it asked for, None where it did not."""

    def __init__(self, response: "Response") -> None:
        self.status = response.status_code
        self.error_code = response.headers.get("X-Error-Code", "")
        self.reason = visible(response.headers.get("X-Error-Message", "")[:200])
        self.url = str(response.request.url)
        self.wait_s = _retry_after(response.headers.get("Retry-After"))
        self.retry = self.status in _RETRIED and (self.wait_s or 0) <= LONGEST_WAIT_S
        super().__init__(*_status_text(self.status, self.url, self.wait_s))


def _status_text(status: int, url: str, wait_s: float | None) -> tuple[str, str]:
    host = _host(url)
    if status == 429:
        when = f"in {wait_s:.0f} s" if wait_s else "in a few minutes"
        return f"{host} says there were too many requests (429)", f"try again {when}"
    if status >= 500:
        when = f"in {wait_s:.0f} s" if wait_s else "later"
        return f"{host} has trouble of its own ({status})", f"try again {when}"
    if status in (401, 403, 407):
        return f"{host} refuses access to {shown_url(url)} ({status})", "check that it needs no sign-in"
    if status in (404, 410):
        return f"{host} has no {shown_url(url)} ({status})", "check the address"
    return f"{host} answered {status} for {shown_url(url)}", "check the address"


def _split(url: str) -> SplitResult:
    """Also for what is no URL: settings and redirects hold anything."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def shown_url(url: str) -> str:
    """A URL as messages may show it: no password, no signature."""
    parts = _split(url)
    return visible(f"{parts.scheme}://{_host(url)}{parts.path}")


def _host(url: str) -> str:
    return visible(_split(url).netloc.rpartition("@")[2])


def open_client(stall_s: float = STALL_S) -> "Client":
    """A client for any number of threads. It follows no redirect by itself: see `get`.

    Raises NetworkError for proxy or certificate settings that cannot work.
    """
    import httpx2

    context = _tls_context()
    timeout = httpx2.Timeout(stall_s)
    try:
        return httpx2.Client(verify=context, timeout=timeout, headers={"User-Agent": "llmrun"})
    except ImportError:
        raise NetworkError(
            "the environment names a SOCKS proxy, which needs one more package",
            "pip install 'httpx2[socks]', or set HTTPS_PROXY to an http:// proxy",
            retry=False,
        ) from None
    except (ValueError, httpx2.InvalidURL):
        raise NetworkError(
            "a proxy setting is no address that can be used",
            "write HTTP_PROXY, HTTPS_PROXY and ALL_PROXY as http://HOST:PORT",
            retry=False,
        ) from None


def _tls_context() -> ssl.SSLContext:
    """The system's certificates, or those that an environment variable names."""
    import httpx2

    variable = next((name for name in CA_VARIABLES if os.environ.get(name)), None)
    if variable is None:
        return httpx2.create_ssl_context()
    path = Path(os.environ[variable])
    # Not ssl.create_default_context: since Python 3.13 it refuses the certificates of many companies.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if path.is_dir():
            context.load_verify_locations(capath=str(path))
        else:
            context.load_verify_locations(cafile=str(path))
    except OSError as fault:
        reason = "holds no certificate" if isinstance(fault, ssl.SSLError) else fault.strerror
        raise NetworkError(f"{variable} names {path}, which cannot be used: {reason}", retry=False) from None
    return context


@contextmanager
def get(client: "Client", url: str, headers: Mapping[str, str], method: str = "GET") -> "Iterator[Response]":
    """The answer to one request, body unread, after at most 10 redirects; any status.

    `Authorization` stops at the first host. Raises NetworkError, also for faults while the body is read.
    """
    import httpx2

    at = url
    try:
        request = client.build_request(method, url, headers={"Accept-Encoding": "identity"} | dict(headers))
        origin = _origin(url)
        for _ in range(MAX_REDIRECTS):
            response = client.send(request, stream=True, follow_redirects=False)
            try:
                if not response.has_redirect_location:
                    yield response
                    return
                target = request.url.join(response.headers["Location"])
            finally:
                response.close()
            _check_redirect(at, str(target))
            carried = httpx2.Headers(request.headers)
            carried.pop("Host", None)
            at = str(target)
            if _origin(at) != origin:
                carried.pop("Authorization", None)
            request = client.build_request(method, target, headers=carried)
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ssl.SSLError) as fault:
        raise network_error(fault, at) from None
    raise NetworkError(f"{_host(url)} redirects for ever", "check the address", retry=False)


def retried(ask: Callable[[], T]) -> T:
    """For short answers: what `ask` returns, after a try or three."""
    for wait_s in SHORT_WAITS_S:
        try:
            return ask()
        except (NetworkError, StatusError) as fault:
            asked_s = getattr(fault, "wait_s", None) or 0.0
            if not fault.retry or asked_s > LONGEST_SHORT_WAIT_S:
                raise
            time.sleep(max(asked_s, wait_s))
    return ask()


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def same_origin(one: str, other: str) -> bool:
    """Whether a token meant for one address may go to the other."""
    return _origin(one) == _origin(other)


def _check_redirect(source: str, target: str) -> None:
    old, new = _split(source), _split(target)
    if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme == "http"):
        raise NetworkError(
            f"{_host(source)} redirects to {shown_url(target)}, which is not an encrypted web address",
            "nothing was fetched; give the final address yourself if you trust it",
            retry=False,
        )


def network_error(fault: Exception, url: str) -> NetworkError:
    """Any fault of the HTTP client, in one line that says what to do."""
    import httpx2

    host, text = _host(url), f"{fault} {fault.__cause__ or ''}"
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return NetworkError(
            f"the certificate of {host} cannot be verified: {_certificate_reason(text)}",
            "behind an inspecting proxy set SSL_CERT_FILE (or REQUESTS_CA_BUNDLE) to the file of its CA",
            retry=False,
        )
    if isinstance(fault, httpx2.ProxyError):
        return NetworkError(
            f"the proxy refused the way to {host}: {visible(str(fault)[:100])}",
            _CHECK_PROXY,
            retry=False,
        )
    if isinstance(fault, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return NetworkError(f"{shown_url(url)} is no web address", "check the address", retry=False)
    if isinstance(fault, httpx2.ConnectError | httpx2.ConnectTimeout):
        proxy = _proxy_of(url)
        way = f" through the proxy {proxy}" if proxy else ""
        reason = _connect_reason(text) if isinstance(fault, httpx2.ConnectError) else "no answer"
        return NetworkError(f"{host} cannot be reached{way}: {reason}", _CHECK_PROXY if proxy else _UNREACHED)
    if isinstance(fault, httpx2.TimeoutException):
        return NetworkError(f"{host} stalls: it has sent nothing for a while", "try again later")
    if isinstance(fault, httpx2.LocalProtocolError):
        # Its text would show the header, token and all.
        message = f"a request to {host} cannot be written"
        return NetworkError(message, "check HF_TOKEN for stray characters", retry=False)
    return NetworkError(f"the connection to {host} broke", "try again")


def _proxy_of(url: str) -> str:
    """Host and port of the proxy that the environment names for an address, or ""."""
    from urllib.request import getproxies, proxy_bypass

    parts, proxies = _split(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not proxy or proxy_bypass(parts.hostname or ""):
        return ""
    return _host(proxy if "://" in proxy else f"//{proxy}")


_CHECK_PROXY = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
_UNREACHED = "check the network; behind a proxy set HTTPS_PROXY, and NO_PROXY for hosts that need none"


def _certificate_reason(text: str) -> str:
    reason = text.partition("certificate verify failed:")[2].partition("(_ssl")[0].strip()
    return visible(reason) or "it is signed by nobody this machine trusts"


def _connect_reason(text: str) -> str:
    for sign, reason in _CONNECT_REASONS.items():
        if sign in text:
            return reason
    return "no connection"


_CONNECT_REASONS = {
    "refused": "connection refused",
    "not known": "no such host, or no network",
    "getaddrinfo": "no such host, or no network",
    "name resolution": "no such host, or no network",
    "No address": "no such host, or no network",
    "unreachable": "no network",
    "SSL": "no TLS connection",
}


def _retry_after(value: str | None) -> float | None:
    """Seconds, from either form of the header."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
