"""Every model on this machine: llmrun's own store, the Hugging Face cache, ollama's and LM Studio's folders."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from llmrun.gguf.kind import Kind
from llmrun.models.checkpoint import checkpoint_files
from llmrun.models.facts import FactsBook, facts_book
from llmrun.models.names import visible
from llmrun.models.quants import ModelFiles, NamedFile, group_models
from llmrun.models.refs import HubRef, ref_text
from llmrun.models.sources import hf_cache, ollama
from llmrun.models.store import Store

Place = Literal["store", "hub", "ollama", "lmstudio"]


@dataclass(frozen=True)
class LocalModel:
    """`name` is what to type for it. `modified` is in seconds since the epoch; `n_ctx_train` in tokens. `kind` is
    gguf, or checkpoint for one that has to be converted. `fault`: why it cannot be used, or ""."""

    name: str
    place: Place
    kind: str
    paths: tuple[str, ...]
    size_bytes: int
    modified: float
    arch: str
    quant: str
    n_params: int
    n_ctx_train: int
    fault: str


class Found(NamedTuple):
    """A model's files before their headers are read."""

    name: str
    place: Place
    paths: tuple[Path, ...]
    kind: str = "gguf"
    fault: str = ""


def list_models(store: Store, others: bool = False) -> list[LocalModel]:
    """By place, then name. `others`: the folders of ollama and LM Studio too. Projectors, adapters and the like
    are no models; a damaged file is listed with its fault."""
    places: list[Iterable[Found]] = [in_store(store), in_hub()]
    if others:
        places += [in_ollama(), in_lm_studio()]
    with facts_book() as book:
        described = (_describe(found, book) for place in places for found in sorted(place, key=_name))
        return [model for model in described if model is not None]


def names(store: Store) -> list[str]:
    """What can be typed for the models that are here, without reading any header: for shell completion."""
    return [found.name for place in (in_store(store), in_hub()) for found in sorted(place, key=_name)]


def _name(found: Found) -> str:
    return found.name


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


def _describe(found: Found, book: FactsBook) -> LocalModel | None:
    statuses = [path.stat() for path in found.paths if path.exists()]
    size_bytes = sum(status.st_size for status in statuses)
    modified = max((status.st_mtime for status in statuses), default=0.0)
    place, paths = found.place, tuple(str(path) for path in found.paths)
    if found.kind != "gguf" or found.fault:
        fault = visible(found.fault)
        return LocalModel(found.name, place, found.kind, paths, size_bytes, modified, "", "", 0, 0, fault)
    facts = book.of(found.paths)
    if not facts.fault and facts.kind != Kind.MODEL:
        return None
    return LocalModel(
        name=found.name,
        place=place,
        kind="gguf",
        paths=paths,
        size_bytes=size_bytes,
        modified=modified,
        arch=facts.arch,
        quant=facts.quant,
        n_params=facts.n_params,
        n_ctx_train=facts.n_ctx_train,
        fault=facts.fault,
    )
