"""Where models lie on this machine, and which files each is: found by names alone, no file is opened.

Shell completion waits for this, so nothing that reads headers is imported.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from llmrun.models.checkpoint import checkpoint_files
from llmrun.models.quants import ModelFiles, NamedFile, group_models
from llmrun.models.refs import HubRef, ref_text
from llmrun.models.sources import hf_cache
from llmrun.models.store import Store

Place = Literal["store", "hub", "ollama", "lmstudio"]


class Found(NamedTuple):
    """A model's files before their headers are read."""

    name: str
    place: Place
    paths: tuple[Path, ...]
    kind: str = "gguf"
    fault: str = ""


def names(store: Store) -> list[str]:
    """What can be typed for the models that are here, without reading any header: for shell completion."""
    return [
        found.name for place in (in_store(store), in_hub()) for found in sorted(place, key=lambda found: found.name)
    ]


def in_store(store: Store) -> Iterator[Found]:
    for entry in store.entries():
        yield Found(entry.name, "store", store.paths(entry), fault=store.damage(entry) or "")


def in_hub() -> Iterator[Found]:
    """Per repo each type once: from the newest commit that has it whole."""
    for repo in hf_cache.cached_repos():
        seen: set[str] = set()
        for snapshot in hf_cache.snapshots(hf_cache.repo_folder(repo), None):
            for found in _in_snapshot(repo, snapshot):
                if found.name not in seen:
                    seen.add(found.name)
                    yield found


def _in_snapshot(repo: str, snapshot: hf_cache.Snapshot) -> Iterator[Found]:
    models = group_models(snapshot.files, repo)
    labels = [model.label for model in models]
    for model in models:
        if not model.missing:
            paths = tuple(snapshot.folder / file.name for file in model.files)
            yield Found(_hub_name(repo, model, labels.count(model.label) > 1), "hub", paths)
    if not models:
        files = checkpoint_files(snapshot.files)
        if files:
            yield Found(repo, "hub", tuple(snapshot.folder / file.name for file in files), "checkpoint")


def _hub_name(repo: str, model: ModelFiles, ambiguous: bool) -> str:
    if model.quant and not ambiguous:
        return ref_text(HubRef(repo, str(model.quant)))
    return ref_text(HubRef(repo, filename=model.files[0].name))


def in_ollama() -> Iterator[Found]:
    from llmrun.models.sources import ollama

    for model in ollama.list_models():
        yield Found(ref_text(model.ref).removesuffix(":latest"), "ollama", model.files)


def in_lm_studio() -> Iterator[Found]:
    """Its models have no names of their own: the path of the first file is what to type."""
    root = lm_studio_folder()
    if root is None:
        return
    files = [
        NamedFile((Path(parent) / name).relative_to(root).as_posix())
        for parent, _, file_names in os.walk(root)
        for name in file_names
    ]
    for model in group_models(files):
        if not model.missing:
            paths = tuple(root / file.name for file in model.files)
            yield Found(str(paths[0]), "lmstudio", paths)


def lm_studio_folder() -> Path | None:
    """Its folder is where a file in the home directory says, else in one of two usual places."""
    home = Path.home()
    try:
        named = (home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        named = ""
    places = [Path(named) / "models"] if named else []
    places += [home / ".lmstudio/models", home / ".cache/lm-studio/models"]
    return next((place for place in places if place.is_dir()), None)
