"""Models in Hugging Face repos: found in, and fetched into, the cache that every other tool uses."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from llmrun.errors import NotFoundError, UsageError
from llmrun.models.checkpoint import checkpoint_files
from llmrun.models.names import visible
from llmrun.models.quants import NamedFile, is_model_name
from llmrun.models.refs import HubRef, ref_text
from llmrun.models.select import choose, choose_file
from llmrun.models.sources import Found, Kind, Offer, RemoteFile, Want, hf_cache
from llmrun.models.store import Store
from llmrun.report import Report

if TYPE_CHECKING:
    from llmrun.models.remote import RemoteReader


class Picked(NamedTuple):
    """The files of a repo that a reference means. `ref` names exactly these; `note` says what was left open."""

    files: tuple[NamedFile, ...]
    kind: Kind
    ref: HubRef
    note: str = ""


def hub_ref(want: Want) -> HubRef:
    assert isinstance(want.ref, HubRef)
    return want.ref


def pick(files: Sequence[NamedFile], want: Want) -> Picked:
    """Raises UsageError and NotFoundError as `select` does."""
    ref = hub_ref(want)
    if ref.filename:
        if not ref.filename.lower().endswith(".gguf"):
            raise UsageError(f"{visible(ref.filename)} is no GGUF file", f"write {ref.repo} alone to convert it")
        model = choose_file(files, ref.repo, ref.filename)
        return Picked(model.files, "gguf", ref)
    if not any(is_model_name(file.name, ref.repo) for file in files):
        parts = checkpoint_files(files)
        if parts:
            return Picked(parts, "checkpoint", ref._replace(quant=None))
    choice = choose(files, ref.repo, ref.quant, want.fit_bytes)
    quant, filename = (choice.model.label, None) if choice.model.quant else (None, choice.model.files[0].name)
    return Picked(choice.model.files, "gguf", ref._replace(quant=quant, filename=filename), choice.note)


def locate(want: Want, store: Store) -> Found | None:
    """What is whole in the Hugging Face cache, whichever tool fetched it."""
    return cached(want)


def cached(want: Want) -> Found | None:
    ref = hub_ref(want)
    folder = hf_cache.repo_folder(ref.repo)
    want = want._replace(ref=ref._replace(repo=hf_cache.repo_name(folder)))
    for snapshot in hf_cache.snapshots(folder, ref.revision):
        try:
            picked = pick(snapshot.files, want)
        except (UsageError, NotFoundError):
            continue
        return found(snapshot.folder, picked)
    return None


def found(folder: Path, picked: Picked) -> Found:
    if picked.kind == "checkpoint":
        return Found((folder,), "checkpoint", ref_text(picked.ref))
    return Found(tuple(folder / file.name for file in picked.files), "gguf", ref_text(picked.ref))


def offer(want: Want, report: Report) -> Offer:
    """Asks the hub; downloads no model data."""
    from llmrun.models.sources import hf_pull

    return hf_pull.offer(want, report)


def quants(want: Want, report: Report) -> tuple[tuple[str, int], ...]:
    """What else the repo offers: (type, bytes) of each whole model."""
    from llmrun.models.sources import hf_pull

    return hf_pull.quants(want, report)


def fetch(want: Want, store: Store, report: Report) -> Found:
    """Makes it be in the cache, checked. Where the hub cannot be asked, what is here serves, and a note says so.

    A repo without GGUF comes as a checkpoint to be converted: its snapshot's folder.
    """
    from llmrun.models.sources import hf_pull

    return hf_pull.fetch(want, report)


def fetch_checkpoint(ref: HubRef, report: Report) -> Path:
    """For conversion: the checkpoint's folder, also where the repo has GGUF files. Raises NotFoundError."""
    from llmrun.models.sources import hf_pull

    return hf_pull.fetch_checkpoint(ref, report)


def reader(file: RemoteFile) -> "AbstractContextManager[RemoteReader]":
    """`read(offset, n)` on a file of an offer, with this user's token."""
    from llmrun.models.sources import hf_pull

    return hf_pull.reader(file)
