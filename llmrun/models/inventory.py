"""Every model on this machine: llmrun's own store, the Hugging Face cache, ollama's and LM Studio's folders."""

from collections.abc import Iterable
from dataclasses import dataclass

from llmrun.gguf.kind import Kind
from llmrun.models.facts import FactsBook, facts_book
from llmrun.models.names import visible
from llmrun.models.places import Found, Place, in_hub, in_lm_studio, in_ollama, in_store
from llmrun.models.store import Store


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


def list_models(store: Store, others: bool = False) -> list[LocalModel]:
    """By place, then name. `others`: the folders of ollama and LM Studio too. Projectors, adapters and the like
    are no models; a damaged file is listed with its fault."""
    places: list[Iterable[Found]] = [in_store(store), in_hub()]
    if others:
        places += [in_ollama(), in_lm_studio()]
    with facts_book() as book:
        described = (
            _describe(found, book) for place in places for found in sorted(place, key=lambda found: found.name)
        )
        return [model for model in described if model is not None]


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
