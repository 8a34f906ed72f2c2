"""Fetches files of a hub repo into the Hugging Face cache, where other tools find them."""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from llmrun.errors import DownloadError, LlmrunError, NotFoundError
from llmrun.models.checkpoint import checkpoint_files
from llmrun.models.http import NetworkError, StatusError
from llmrun.models.names import checked_name, visible
from llmrun.models.quants import NamedFile, group_models
from llmrun.models.refs import HubRef, ref_text
from llmrun.models.remote import RemoteReader, open_remote
from llmrun.models.sources import Found, Offer, RemoteFile, Want, hf_cache
from llmrun.models.sources.hf import Picked, cached, found, hub_ref, pick
from llmrun.models.sources.hf_api import HubFile, Listing, list_repo, stall_s, token_headers
from llmrun.models.sources.hf_faults import explain
from llmrun.models.transfer import fetch as transfer
from llmrun.models.wanted import Wanted
from llmrun.report import Report

T = TypeVar("T")


class _Offline(Exception):
    """The hub cannot be asked. `fault` is the error where nothing is here either."""

    def __init__(self, why: str, fault: LlmrunError) -> None:
        self.why, self.fault = why, fault


def offer(want: Want, report: Report) -> Offer:
    try:
        listing = _ask(hub_ref(want), report)
    except _Offline as state:
        raise state.fault from None
    picked = pick(_named(listing), _canonical(want, listing))
    files = {file.name: file for file in listing.files}
    remote = tuple(_remote(listing, files[file.name]) for file in picked.files)
    return Offer(remote, picked.kind, ref_text(picked.ref))


def quants(want: Want, report: Report) -> tuple[tuple[str, int], ...]:
    """The repo's whole models as (type, bytes); none where the reference names one file."""
    ref = hub_ref(want)
    if ref.filename or hf_cache.is_offline():
        return ()
    models = group_models(_named(list_repo(ref, report)), ref.repo)
    return tuple((model.label, model.size_bytes) for model in models if model.quant and not model.missing)


def fetch(want: Want, report: Report) -> Found:
    try:
        listing = _ask(hub_ref(want), report)
    except _Offline as state:
        return _unchecked(cached(want), want.name, state, report)
    picked = pick(_named(listing), _canonical(want, listing))
    if picked.note:
        report.note(picked.note)
    _check_catalogue(want, listing, picked)
    return found(fetch_files(listing, picked, want.name, report), picked)


def fetch_checkpoint(ref: HubRef, report: Report) -> Path:
    """The folder of a repo's safetensors checkpoint, also where the repo has GGUF files beside it. Raises
    NotFoundError where it has none that is whole."""
    try:
        listing = _ask(ref, report)
    except _Offline as state:
        snapshots = hf_cache.snapshots(hf_cache.repo_folder(ref.repo), ref.revision)
        folders = [one.folder for one in snapshots if checkpoint_files(one.files)]
        return _unchecked(folders[0] if folders else None, ref_text(ref), state, report)
    files = checkpoint_files(_named(listing))
    if not files:
        names = ", ".join(visible(file.name) for file in listing.files[:12])
        raise NotFoundError(f"{ref.repo} has no whole safetensors checkpoint", f"it has {names}")
    return fetch_files(listing, Picked(files, "checkpoint", ref), ref_text(ref), report)


def _ask(ref: HubRef, report: Report) -> Listing:
    if hf_cache.is_offline():
        message = f"{ref_text(ref)} is not here, and this machine is set to offline (HF_HUB_OFFLINE)"
        raise _Offline("offline", NotFoundError(message, _what_is_here(ref)))
    try:
        return list_repo(ref, report)
    except (NetworkError, StatusError) as fault:
        fault.hint = f"{fault.hint}; {_what_is_here(ref)}"
        raise _Offline(f"offline: {fault.message}", fault) from None


def _unchecked(here: T | None, name: str, state: _Offline, report: Report) -> T:
    if here is None:
        raise state.fault from None
    report.note(f"{visible(name)}: here (not checked, {state.why})")
    return here


def _canonical(want: Want, listing: Listing) -> Want:
    """With the hub's own spelling of the repo's name."""
    return want._replace(ref=hub_ref(want)._replace(repo=listing.asked.repo))


def _check_catalogue(want: Want, listing: Listing, picked: Picked) -> None:
    digests = [file.digest for file in listing.files if file.name == picked.files[0].name]
    if want.sha256 and digests != [want.sha256]:
        raise DownloadError(
            f"{ref_text(picked.ref)} is no longer the file that {want.name} stands for: its checksum is another",
            f"give {ref_text(picked.ref)} itself if you want it as it is now",
        )


def reader(file: RemoteFile) -> AbstractContextManager[RemoteReader]:
    return open_remote(file.url, token_headers(), stall_s())


def fetch_files(listing: Listing, picked: Picked, task: str, report: Report) -> Path:
    """Makes the picked files be in the snapshot of the listing's commit; returns its folder."""
    folder = hf_cache.repo_folder(listing.asked.repo)
    names = {file.name for file in picked.files}
    files = [file for file in listing.files if file.name in names]
    wanted = [_wanted(listing, file, folder, report) for file in files]
    new = {file.final for file in wanted if not file.is_here()}
    try:
        transfer(wanted, task, report, listing.headers, stall_s())
    except StatusError as fault:
        raise explain(fault, listing.asked) from None
    if not _place(wanted, new):
        report.note("this system allows no symbolic links: the files are kept without them")
    hf_cache.write_ref(folder, listing.asked.revision or "main", listing.commit)
    return folder / "snapshots" / listing.commit


def _place(wanted: Sequence[Wanted], new: set[Path]) -> bool:
    """False where files had to be moved or copied. One that two names share is moved for the last of them."""
    last = {file.final: file for file in wanted}
    linked = True
    for file in wanted:
        if file.pointer:
            may_move = file.final in new and last[file.final] is file
            linked = hf_cache.place(file.final, file.pointer, may_move) and linked
    return linked


def _wanted(listing: Listing, file: HubFile, folder: Path, report: Report) -> Wanted:
    pointer = folder / "snapshots" / listing.commit / checked_name(file.name)
    blob, size, digest = file.digest, file.size_bytes, file.digest
    if digest and not hf_cache.is_blob_name(digest):
        shown = f"{visible(listing.asked.repo)}: {visible(file.name)}"
        raise DownloadError(f"{shown} has no checksum but '{visible(digest[:80])}'", "check HF_ENDPOINT")
    if size is None:
        with open_remote(listing.url(file.name), listing.headers, stall_s()) as remote:
            size = remote.facts().size_bytes
    if size is None:
        raise DownloadError(f"the hub does not say how long {visible(file.name)} is", "check HF_ENDPOINT")
    if not blob:
        report.note(f"the hub gives no checksum for {visible(file.name)}: only its length is checked")
        blob = hashlib.sha256(f"{listing.commit}/{file.name}".encode()).hexdigest()
    is_gguf = file.name.lower().endswith(".gguf")
    lock = hf_cache.lock_path(folder, blob)
    return Wanted(listing.url(file.name), folder / "blobs" / blob, size, digest, lock, is_gguf, pointer)


def _named(listing: Listing) -> list[NamedFile]:
    return [NamedFile(file.name, file.size_bytes) for file in listing.files]


def _remote(listing: Listing, file: HubFile) -> RemoteFile:
    sha256 = file.digest if len(file.digest) == 64 else None
    return RemoteFile(file.name, file.size_bytes, sha256, listing.url(file.name))


def _what_is_here(ref: HubRef) -> str:
    """Other models of the repo that are cached, else the repos that are."""
    snapshots = hf_cache.snapshots(hf_cache.repo_folder(ref.repo), None)
    labels = {model.label for one in snapshots for model in group_models(one.files, ref.repo) if not model.missing}
    if labels:
        return f"here are, of this repo: {', '.join(visible(label) for label in sorted(labels))}"
    repos = [visible(name) for name in hf_cache.cached_repos()]
    more = f" and {len(repos) - 8} more" if len(repos) > 8 else ""
    return f"in the cache are: {', '.join(repos[:8])}{more}" if repos else "the cache is empty"
