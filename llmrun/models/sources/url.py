"""Models at plain web addresses, kept in llmrun's own store. What a server says of a file identifies it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmrun.models.quants import split_parts
from llmrun.models.refs import UrlRef, public_url, ref_text
from llmrun.models.sources import Found, Offer, RemoteFile, Want, stored
from llmrun.models.store import Incoming, Store, hash_file
from llmrun.report import Report

if TYPE_CHECKING:
    from llmrun.models.remote import Facts, RemoteReader
    from llmrun.models.wanted import Wanted

locate = stored.locate


class _Asked(NamedTuple):
    """One file, as its server describes it."""

    url: str
    name: str
    size_bytes: int
    facts: "Facts"


def offer(want: Want, report: Report) -> Offer:
    """Reads the first bytes of each part. Raises ModelFileError where they are not those of a GGUF."""
    files = _ask(want)
    sha256 = want.sha256 if len(files) == 1 else None
    remote = tuple(RemoteFile(file.name, file.size_bytes, sha256, file.url) for file in files)
    return Offer(remote, source=ref_text(want.ref))


def fetch(want: Want, store: Store, report: Report) -> Found:
    """A file at an address has no revisions: what is here stays."""
    return stored.fetch(want, store, report, lambda folder: _download(want, folder, report))


def reader(file: RemoteFile) -> "AbstractContextManager[RemoteReader]":
    """`read(offset, n)` on a file of an offer."""
    from llmrun.models.remote import open_remote

    return open_remote(file.url)


def _download(want: Want, folder: Path, report: Report) -> list[Incoming]:
    from llmrun.models.names import visible
    from llmrun.models.transfer import fetch as transfer

    files = _ask(want)
    wanted = [_wanted(file, folder, want) for file in files]
    _drop_old_parts(folder, wanted)
    transfer(wanted, visible(files[0].name), report)
    return [_incoming(one, file.name, report) for one, file in zip(wanted, files, strict=True)]


def _part_urls(want: Want) -> list[str]:
    """The address, or those of all parts where it is one part of a split model."""
    from urllib.parse import urlsplit, urlunsplit

    assert isinstance(want.ref, UrlRef)
    parts = urlsplit(want.ref.url)
    folder, _, name = parts.path.rpartition("/")
    names = split_parts(name) or [name]
    return [urlunsplit(parts._replace(path=f"{folder}/{part}")) for part in names]


def _ask(want: Want) -> list[_Asked]:
    """One small request a part. Raises DownloadError where there is no length to check a download by."""
    from llmrun.errors import DownloadError
    from llmrun.models.http import shown_url
    from llmrun.models.remote import open_remote
    from llmrun.models.wanted import Wanted, check_gguf

    files = []
    for url in _part_urls(want):
        with open_remote(url) as remote:
            facts = remote.facts()
        check_gguf(facts.head, Wanted(url, Path(), facts.size_bytes or len(facts.head), "", is_gguf=True))
        if facts.size_bytes is None:
            raise DownloadError(
                f"the server does not say how long {shown_url(url)} is, so a broken download could not be told",
                "fetch it with another program and give llmrun the file",
            )
        files.append(_Asked(url, _name(url, facts.disposition), facts.size_bytes, facts))
    return files


def _name(url: str, disposition: str) -> str:
    """For display only: what the server calls the file, else the end of its address."""
    from email.message import Message
    from urllib.parse import unquote, urlsplit

    from llmrun.errors import DownloadError
    from llmrun.models.names import checked_name

    message = Message()
    message["Content-Disposition"] = disposition
    for name in (message.get_filename(), unquote(urlsplit(url).path)):
        try:
            return str(checked_name((name or "").rpartition("/")[2]))
        except DownloadError:
            continue
    return "model.gguf"


def _wanted(file: _Asked, folder: Path, want: Want) -> "Wanted":
    """Its part is kept under what identifies the content: the checksum, else all that the server says."""
    import hashlib

    from llmrun.models.parts import discard_part
    from llmrun.models.wanted import Wanted

    digest, facts = want.sha256 or "", file.facts
    identity = digest or f"{public_url(file.url)}\n{facts.etag}\n{facts.modified}\n{file.size_bytes}"
    final = folder / hashlib.sha256(identity.encode()).hexdigest()[:32]
    if not (digest or facts.etag or facts.modified):
        discard_part(final)
    return Wanted(file.url, final, file.size_bytes, digest, is_gguf=True)


def _drop_old_parts(folder: Path, wanted: "Sequence[Wanted]") -> None:
    """Those of what the server had there earlier."""
    current = {file.final.name for file in wanted}
    for path in folder.iterdir():
        if path.name.partition(".")[0] not in current:
            path.unlink()


def _incoming(file: "Wanted", name: str, report: Report) -> Incoming:
    return Incoming(file.final, name, file.digest or hash_file(file.final, f"checking {file.name}", report))
