"""Fetches files of a hub repo into the Hugging Face cache, where other tools find them."""

import hashlib
from contextlib import AbstractContextManager
from pathlib import Path

from llmrun.errors import DownloadError, NotFoundError
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

OFFLINE = "this machine is set to offline (HF_HUB_OFFLINE)"


def offer(want: Want, report: Report) -> Offer:
    if hf_cache.is_offline():
        raise _not_here(hub_ref(want), OFFLINE)
    listing = list_repo(hub_ref(want), report)
    picked = pick(_named(listing), want)
    files = {file.name: file for file in listing.files}
    remote = tuple(_remote(listing, files[file.name]) for file in picked.files)
    return Offer(remote, picked.kind, ref_text(picked.ref))


def fetch(want: Want, report: Report) -> Found:
    ref = hub_ref(want)
    if hf_cache.is_offline():
        here = _here_unchecked(want, "offline", report)
        if here is None:
            raise _not_here(ref, OFFLINE)
        return here
    try:
        listing = list_repo(ref, report)
    except (NetworkError, StatusError) as fault:
        here = _here_unchecked(want, f"offline: {fault.message}", report)
        if here is None:
            fault.hint = f"{fault.hint}; {_what_is_here(ref)}"
            raise
        return here
    picked = pick(_named(listing), want)
    if picked.note:
        report.note(picked.note)
    _check_catalogue(want, listing, picked)
    return found(fetch_files(listing, picked, want.name, report), picked)


def _check_catalogue(want: Want, listing: Listing, picked: Picked) -> None:
    digests = [file.digest for file in listing.files if file.name == picked.files[0].name]
    if want.sha256 and digests != [want.sha256]:
        raise DownloadError(
            f"{ref_text(picked.ref)} is no longer the file that {want.name} stands for: its checksum is another",
            f"give {ref_text(picked.ref)} itself if you want it as it is now",
        )


def fetch_checkpoint(ref: HubRef, report: Report) -> Path:
    """The folder of a repo's safetensors checkpoint, also where the repo has GGUF files beside it. Raises
    NotFoundError where it has none that is whole."""
    offline = hf_cache.is_offline()
    for one in hf_cache.snapshots(hf_cache.repo_folder(ref.repo), ref.revision) if offline else ():
        if checkpoint_files(one.files):
            report.note(f"{visible(ref.repo)}: here (not checked, offline)")
            return one.folder
    if offline:
        raise _not_here(ref, OFFLINE)
    listing = list_repo(ref, report)
    files = checkpoint_files(_named(listing))
    if not files:
        names = ", ".join(visible(file.name) for file in listing.files[:12])
        raise NotFoundError(f"{ref.repo} has no whole safetensors checkpoint", f"it has {names}")
    return fetch_files(listing, Picked(files, "checkpoint", ref), ref_text(ref), report)


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
    linked = [hf_cache.place(file.final, file.pointer, file.final in new) for file in wanted if file.pointer]
    if not all(linked):
        report.note("this system allows no symbolic links: the files are kept without them")
    hf_cache.write_ref(folder, listing.asked.revision or "main", listing.commit)
    return folder / "snapshots" / listing.commit


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


def _here_unchecked(want: Want, why: str, report: Report) -> Found | None:
    here = cached(want)
    if here is not None:
        report.note(f"{want.name}: here (not checked, {why})")
    return here


def _not_here(ref: HubRef, why: str) -> NotFoundError:
    return NotFoundError(f"{ref_text(ref)} is not here, and {why}", _what_is_here(ref))


def _what_is_here(ref: HubRef) -> str:
    """Other models of the repo that are cached, else the repos that are."""
    snapshots = hf_cache.snapshots(hf_cache.repo_folder(ref.repo), None)
    labels = {model.label for one in snapshots for model in group_models(one.files, ref.repo) if not model.missing}
    if labels:
        return f"here are, of this repo: {', '.join(visible(label) for label in sorted(labels))}"
    repos = [visible(name) for name in hf_cache.cached_repos()]
    more = f" and {len(repos) - 8} more" if len(repos) > 8 else ""
    return f"in the cache are: {', '.join(repos[:8])}{more}" if repos else "the cache is empty"
