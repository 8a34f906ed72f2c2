"""Asks the hub what a repo holds, through huggingface_hub. Knows no disk but the token's file."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from llmrun.errors import DownloadError, UsageError
from llmrun.models import http
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.names import checked_name, visible
from llmrun.models.refs import HubRef
from llmrun.models.sources import hf_cache
from llmrun.models.sources.hf_faults import LOGIN, Asked, explain
from llmrun.report import Report

if TYPE_CHECKING:
    from httpx2 import Client
    from huggingface_hub import HfApi


class HubFile(NamedTuple):
    """`digest`: the sha256 of a large file, the git id of a small one, "" where the hub gives neither."""

    name: str
    size_bytes: int | None
    digest: str


class Listing(NamedTuple):
    """What a repo holds at one commit."""

    asked: Asked
    commit: str
    files: tuple[HubFile, ...]
    endpoint: str
    headers: dict[str, str]

    def url(self, name: str) -> str:
        return f"{self.endpoint}/{self.asked.repo}/resolve/{self.commit}/{quote(name)}"


def endpoint() -> str:
    value = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not re.match(r"https?://", value):
        raise UsageError(f"HF_ENDPOINT is no web address: {visible(value)}", "write it with https:// in front")
    return value


def stall_s() -> float:
    value = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    return float(value) if value.isdigit() and int(value) else http.STALL_S


def token_headers() -> dict[str, str]:
    """The header that shows who asks: empty without a token."""
    import httpx2

    with _library() as library:
        try:
            headers = library.utils.build_hf_headers(library_name="llmrun")
        except NotADirectoryError:  # where a token would be kept there is no folder: what is written there says so
            return {}
        except (library.errors.HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as fault:
            raise DownloadError(f"the hub's token cannot be had ({type(fault).__name__})", LOGIN) from None
    value = headers.get("authorization")
    if value is None:
        return {}
    if not re.fullmatch(r"Bearer [\x21-\x7e]+", value):
        raise UsageError("the hub's token holds characters that no token has", f"{LOGIN} to the right one")
    return {"Authorization": value}


def list_repo(ref: HubRef, report: Report) -> Listing:
    """One call. Raises NetworkError where the hub is not reached, else what `explain` makes of a refusal."""
    base, headers = endpoint(), token_headers()
    page = http.shown_url(f"{base}/{ref.repo}")
    asked = Asked(ref.repo, ref.revision, page, has_token=bool(headers))
    try:
        info = http.retried(lambda: _model_info(base, ref, headers))
    except StatusError as fault:
        raise explain(fault, asked) from None
    if not hf_cache.is_commit(info.sha or ""):
        raise DownloadError(f"{page} names no commit", "check HF_ENDPOINT")
    # Only the case may differ from what was asked: a name from a server becomes no path.
    repo = info.id if info.id.lower() == ref.repo.lower() else ref.repo
    files = tuple(_files(info.siblings or [], repo, report))
    asked = asked._replace(repo=repo, files=[file.name for file in files])
    return Listing(asked, info.sha, files, base, headers)


def _model_info(base: str, ref: HubRef, headers: dict[str, str]) -> Any:
    import httpx2

    with _library() as library:
        token = headers.get("Authorization", "").partition(" ")[2]
        api: HfApi = library.HfApi(endpoint=base, token=token or False)
        try:
            return api.model_info(ref.repo, revision=ref.revision, files_metadata=True, timeout=stall_s())
        except library.errors.HFValidationError:
            raise UsageError(f"{visible(ref.repo)} is no repo's name", "write ORG/NAME") from None
        except library.errors.HfHubHTTPError as fault:
            raise StatusError(fault.response) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
            raise http.network_error(fault, base) from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise NetworkError(
                f"{http.shown_url(base)} does not answer as the hub does",
                "a sign-in page of this network or proxy? open any page in a browser; or check HF_ENDPOINT",
                retry=False,
            ) from None


@contextmanager
def _library() -> Iterator[Any]:
    """huggingface_hub without telemetry and Xet, speaking through a client of ours: the same proxies,
    certificates and time-outs as for downloads."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["HF_HUB_DISABLE_XET"] = "1"
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ValueError as fault:
        raise UsageError(f"a setting that begins with HF_ is wrong: {visible(str(fault))}") from None
    # What a server writes into its warning headers would reach the terminal unescaped.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    huggingface_hub.set_client_factory(_api_client)
    try:
        yield huggingface_hub
    finally:
        huggingface_hub.close_session()


def _api_client() -> "Client":
    client = http.open_client(stall_s())
    client.follow_redirects = True
    return client


def _files(siblings: list[Any], repo: str, report: Report) -> Iterator[HubFile]:
    """What may be fetched. Names that could lead outside, or play with the terminal, are passed over."""
    for sibling in siblings:
        name, size = str(sibling.rfilename), sibling.size
        try:
            checked_name(name)
        except DownloadError:
            report.note(f"{visible(repo)}: passing over a file with an unsafe name: {visible(name[:80])}")
            continue
        digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        yield HubFile(name, size if isinstance(size, int) and size >= 0 else None, str(digest or ""))
