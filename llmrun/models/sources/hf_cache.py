"""The Hugging Face cache on disk, as every tool shares it: `models--ORG--NAME/{blobs,snapshots,refs}`.

Standard library only, since finding a model that is here is on the way to its first token. Knows no network.
Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from llmrun.models.quants import NamedFile

_COMMIT = re.compile(r"[0-9a-f]{40}")
_BLOB = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_TRUE = {"1", "ON", "YES", "TRUE"}


class Snapshot(NamedTuple):
    """The files of one commit that are here, whole or not by the rest of their model."""

    folder: Path
    files: tuple[NamedFile, ...]

    @property
    def commit(self) -> str:
        return self.folder.name


def cache_dir() -> Path:
    """From the variables that huggingface_hub reads, in its order."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return _path(value)
    if value := os.environ.get("HF_HOME"):
        return _path(value) / "hub"
    return _path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _path(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()


def is_offline() -> bool:
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in _TRUE


def is_commit(text: str) -> bool:
    return bool(_COMMIT.fullmatch(text))


def is_blob_name(text: str) -> bool:
    """Whether a checksum from a server may be a file name: hex of a sha256 or a git id, nothing else."""
    return bool(_BLOB.fullmatch(text))


def repo_folder(repo: str) -> Path:
    """Where a repo is, or will be, kept. One that is here under another case of its name is the same repo."""
    exact = cache_dir() / f"models--{repo.replace('/', '--')}"
    if exact.is_dir():
        return exact
    return next((path for path in _folders(exact.parent) if path.name.lower() == exact.name.lower()), exact)


def repo_name(folder: Path) -> str:
    """ORG/NAME of a repo's folder."""
    return folder.name.removeprefix("models--").replace("--", "/", 1)


def lock_path(folder: Path, blob: str) -> Path:
    """The hub client's own lock for a blob: it and llmrun wait for each other."""
    return folder.parent / ".locks" / folder.name / f"{blob}.lock"


def cached_repos() -> list[str]:
    return sorted(repo_name(path) for path in _folders(cache_dir()) if path.name.startswith("models--"))


def snapshots(folder: Path, revision: str | None) -> Iterator[Snapshot]:
    """What is here of a repo, best first: the commit that `revision` (main) was when last asked, then, where
    no revision was named, the other commits, newest first."""
    commit = _read_ref(folder, revision or "main")
    known = {path.name: path for path in _folders(folder / "snapshots")}
    first = [known.pop(commit)] if commit in known else []
    others = sorted(known.values(), key=lambda path: path.stat().st_mtime, reverse=True) if not revision else []
    for path in first + others:
        yield Snapshot(path, tuple(_files(path)))


def _read_ref(folder: Path, revision: str) -> str:
    """The commit; `revision` may itself be one, or the beginning of one."""
    if _is_plain(revision) and (ref := folder / "refs" / revision).is_file():
        return ref.read_text(encoding="ascii", errors="replace").strip()
    matching = [path.name for path in _folders(folder / "snapshots") if path.name.startswith(revision)]
    return matching[0] if len(revision) >= 7 and len(matching) == 1 else revision


def _is_plain(revision: str) -> bool:
    return not any(part in ("", ".", "..") or "\\" in part or ":" in part for part in revision.split("/"))


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def _files(folder: Path) -> Iterator[NamedFile]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.is_file():  # follows the link, and the second one that Xet's shared store makes
                yield NamedFile(path.relative_to(folder).as_posix(), path.stat().st_size)


def place(blob: Path, pointer: Path, may_move: bool) -> bool:
    """Makes `pointer`, in a snapshot, be the blob. False where that took a move or a copy, because this
    system or its user allows no symbolic links."""
    import shutil

    from llmrun.models.parts import check_space, flush_file, writing

    if pointer.is_file() and (not blob.exists() or pointer.samefile(blob)):
        return True
    with writing(pointer.parent, 0):
        pointer.parent.mkdir(parents=True, exist_ok=True)
        beside = pointer.with_name(f"{pointer.name}.{os.getpid()}.tmp")
        try:
            if os.environ.get("HF_HUB_DISABLE_SYMLINKS", "").upper() in _TRUE:
                raise OSError("links are switched off")
            beside.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:
            # Windows: error 1314, no right to make links outside developer mode.
            if may_move:
                blob.replace(pointer)
                return False
            check_space(pointer.parent, blob.stat().st_size)
            shutil.copyfile(blob, beside)
            flush_file(beside)
            beside.replace(pointer)
            return False
        beside.replace(pointer)
    return True


def write_ref(folder: Path, revision: str, commit: str) -> None:
    """Remember which commit a branch or tag was; not in a cache that may only be read."""
    if revision == commit or not _is_plain(revision):
        return
    from llmrun.models.parts import flush_folder

    ref = folder / "refs" / revision
    with suppress(OSError):
        if ref.is_file() and ref.read_text(encoding="ascii", errors="replace") == commit:
            return
        ref.parent.mkdir(parents=True, exist_ok=True)
        beside = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
        beside.write_text(commit, encoding="ascii")
        beside.replace(ref)
        flush_folder(ref.parent)
