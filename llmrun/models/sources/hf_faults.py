"""What the hub's refusals mean, and what to do about each. Knows no connection."""

from collections.abc import Sequence
from typing import NamedTuple

from llmrun.errors import DownloadError, LlmrunError, NotFoundError
from llmrun.models.http import StatusError
from llmrun.models.names import visible

LOGIN = "run `hf auth login`, or set HF_TOKEN"
_SHOWN_FILES = 12


class Asked(NamedTuple):
    """What was asked of the hub. `page` is the repo's address, `files` the names in it, where they are known."""

    repo: str
    revision: str | None
    page: str
    has_token: bool
    files: Sequence[str] = ()


def explain(fault: StatusError, asked: Asked) -> LlmrunError:
    """The error for a refusal of the hub; the fault itself where it says it all."""
    repo, page, has_token = visible(asked.repo), asked.page, asked.has_token
    if fault.error_code == "GatedRepo":
        if not has_token:
            hint = f"accept the licence at {page}, then {LOGIN}"
            return DownloadError(f"{repo} is gated: its licence must be accepted first", hint)
        said = f" (the hub says: {fault.reason})" if fault.reason else ""
        return DownloadError(
            f"{repo} is gated, and this token does not open it", f"accept the licence at {page}{said}"
        )
    if fault.error_code == "RevisionNotFound":
        name = visible(asked.revision or "main")
        return NotFoundError(f"{repo} has no revision '{name}'", f"its branches and tags are at {page}/tree/main")
    if fault.error_code == "EntryNotFound":
        return no_such_file(repo, fault.url.partition("?")[0].rpartition("/")[2], asked.files)
    if "disabled" in fault.reason.lower():
        return DownloadError(f"{repo} is disabled on the hub", f"its page says why: {page}")
    if fault.status == 401 and "credentials" in fault.reason.lower():
        return DownloadError("the hub does not know this token", f"{LOGIN} to a valid one, or unset it")
    if fault.error_code == "RepoNotFound" or fault.status in (401, 404):
        private = "this token may not read it" if has_token else LOGIN
        return NotFoundError(f"{repo} is not on the hub, or is private", f"check the spelling; if private: {private}")
    if fault.status == 403:
        why = f": {fault.reason}" if fault.reason else ""
        return DownloadError(
            f"no access to {repo} (403){why}", f"ask its owner, or {LOGIN} of an account that has it"
        )
    return fault


def no_such_file(repo: str, name: str, files: Sequence[str]) -> NotFoundError:
    shown = ", ".join(visible(file) for file in files[:_SHOWN_FILES])
    more = f", and {len(files) - _SHOWN_FILES} more" if len(files) > _SHOWN_FILES else ""
    return NotFoundError(f"{repo} has no file '{visible(name)}'", f"it has {shown}{more}" if files else "")
