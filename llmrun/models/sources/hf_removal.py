"""Which files of the Hugging Face cache a model alone uses, and removing them. Knows the cache's layout only."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from llmrun.errors import NotFoundError, UsageError
from llmrun.models.names import visible
from llmrun.models.parts import discard_part
from llmrun.models.quants import ModelFiles, group_models
from llmrun.models.refs import HubRef, ref_text
from llmrun.models.select import asked_for
from llmrun.models.sources import hf_cache


class HubFiles(NamedTuple):
    """`links` are a model's names in snapshots, `blobs` the data that only they use. `whole_repo`: nothing of
    use would be left, so all of `folder` goes."""

    name: str
    folder: Path
    links: tuple[Path, ...]
    blobs: tuple[Path, ...]
    freed_bytes: int
    whole_repo: bool


def find_files(ref: HubRef) -> HubFiles:
    """Raises NotFoundError for what is not in the cache, UsageError for a repo with several models in it."""
    folder = hf_cache.repo_folder(ref.repo)
    if not folder.is_dir():
        raise NotFoundError(f"{ref_text(ref)} is not here", "llmrun list shows what is")
    snapshots = list(hf_cache.snapshots(folder, ref.revision))
    models: dict[str, ModelFiles] = {}
    for snapshot in snapshots:
        for model in group_models(snapshot.files, ref.repo):
            models.setdefault(model.files[0].name, model)
    chosen = _chosen(list(models.values()), ref)
    names = {file.name for file in chosen.files} if chosen else set()
    everything = [snapshot.folder / file.name for snapshot in _all(folder) for file in snapshot.files]
    links = [snapshot.folder / name for snapshot in snapshots for name in names if (snapshot.folder / name).is_file()]
    name = ref_text(HubRef(ref.repo, chosen.label)) if chosen and chosen.quant else ref.repo
    left = [path for path in everything if path not in links]
    if chosen is None or not any(group_models(snapshot.files, ref.repo) for snapshot in _all(folder, links)):
        return HubFiles(name, folder, tuple(everything), (), _real_bytes([folder]), whole_repo=True)
    used = {_data(path) for path in left}
    blobs = {_data(path) for path in links} - used
    return HubFiles(name, folder, tuple(links), tuple(blobs), _real_bytes(blobs), whole_repo=False)


def remove_files(files: HubFiles) -> None:
    """Raises OSError."""
    if files.whole_repo:
        shutil.rmtree(files.folder)
        return
    for link in files.links:
        link.unlink(missing_ok=True)
        _remove_empty(link.parent, files.folder / "snapshots")
    for blob in files.blobs:
        blob.unlink(missing_ok=True)
        discard_part(blob)
    _remove_refs(files.folder)


def _chosen(models: list[ModelFiles], ref: HubRef) -> ModelFiles | None:
    """None: all of the repo."""
    if ref.filename:
        found = [model for model in models if any(file.name == ref.filename for file in model.files)]
        if not found:
            raise NotFoundError(f"{visible(ref_text(ref))} is not here", "llmrun list shows what is")
        return found[0]
    if ref.quant:
        if not models:
            raise NotFoundError(f"{ref_text(ref)} is not here", "llmrun list shows what is")
        return asked_for(models, ref.repo, ref.quant)
    if len(models) > 1:
        labels = ", ".join(visible(model.label) for model in models)
        raise UsageError(
            f"several models of {ref.repo} are here: {labels}", f"name one: {ref.repo}:{models[0].label}"
        )
    return models[0] if models else None


def _all(folder: Path, without: Iterable[Path] = ()) -> list[hf_cache.Snapshot]:
    gone = set(without)
    return [
        snapshot._replace(files=tuple(file for file in snapshot.files if snapshot.folder / file.name not in gone))
        for snapshot in hf_cache.snapshots(folder, None)
    ]


def _data(link: Path) -> Path:
    """The blob, or the file itself where the system has no links. Only one step: a blob may be a link too."""
    if not link.is_symlink():
        return link
    return Path(os.path.normpath(link.parent / link.readlink()))


def _real_bytes(paths: Iterable[Path]) -> int:
    """What the disk gains: links count nothing."""
    total = 0
    for path in paths:
        files = [Path(parent, name) for parent, _, names in os.walk(path) for name in names] or [path]
        total += sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink())
    return total


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and folder.is_relative_to(top) and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _remove_refs(folder: Path) -> None:
    """A branch whose commit is gone would make other tools call the cache corrupt."""
    refs = folder / "refs"
    for path in [path for path in refs.rglob("*") if path.is_file()]:
        commit = path.read_text(encoding="ascii", errors="replace").strip()
        if not (folder / "snapshots" / commit).is_dir():
            path.unlink()
