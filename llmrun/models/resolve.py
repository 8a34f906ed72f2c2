"""From what the user typed to files on this machine. Knows every source; loads none before it is needed."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from llmrun.errors import DownloadError, ModelFileError, NotFoundError, UsageError
from llmrun.models.catalog import Catalog, CatalogEntry, Setting
from llmrun.models.names import visible
from llmrun.models.refs import (
    FORMS,
    AliasRef,
    FileRef,
    HubRef,
    OllamaRef,
    PypiRef,
    Ref,
    UrlRef,
    parse_ref,
    ref_text,
)
from llmrun.models.sources import Found, Kind, Offer, Source, Want
from llmrun.models.store import Store
from llmrun.report import Report

Delivered = TypeVar("Delivered")

_SOURCES: dict[type[Ref], str] = {
    FileRef: "local",
    HubRef: "hf",
    UrlRef: "url",
    OllamaRef: "ollama",
    PypiRef: "pypi",
}


class Resolved(NamedTuple):
    """`paths` is empty until the model is here; `fetch` then fills it.

    `name` is what lists and JSON call the model (the alias, or the reference's canonical text), `source` the
    reference its bytes came from, `defaults` the catalogue's settings under their flag names.
    """

    name: str
    wants: tuple[Want, ...]
    defaults: Mapping[str, Setting]
    licence: str = ""
    licence_note: str = ""
    paths: tuple[Path, ...] = ()
    kind: Kind = "gguf"
    source: str = ""


def resolve(text: str, catalog: Catalog, store: Store, report: Report) -> Resolved:
    """No network. Raises UsageError (no reference), NotFoundError (no such alias, file or part)."""
    ref = parse_ref(text)
    resolved = _named(ref, catalog, store, report) if isinstance(ref, AliasRef) else _plain(ref)
    for want in resolved.wants:
        try:
            found = source_of(want.ref).locate(want, store)
        except NotFoundError:
            if want is resolved.wants[-1]:
                raise
            continue
        if found is not None:
            return _here(resolved, found)
    return resolved


def fetch(resolved: Resolved, store: Store, report: Report, fit_bytes: int | None = None) -> Resolved:
    """Tries the sources in order; raises the last one's error where none delivers.

    `fit_bytes` is this machine's memory for weights: it decides among quants where none is named.
    """
    if resolved.licence_note and not resolved.paths:
        report.note(resolved.licence_note)

    def ask(want: Want) -> Found:
        return source_of(want.ref).fetch(want._replace(fit_bytes=fit_bytes), store, report)

    return _here(resolved, first_to_deliver(resolved.wants, ask, report))


def offer(resolved: Resolved, report: Report, fit_bytes: int | None = None) -> Offer:
    """What a fetch would bring, from the first source that answers; downloads no model data."""

    def ask(want: Want) -> Offer:
        return source_of(want.ref).offer(want._replace(fit_bytes=fit_bytes), report)

    return first_to_deliver(resolved.wants, ask, report)


def first_to_deliver(wants: Sequence[Want], ask: Callable[[Want], Delivered], report: Report) -> Delivered:
    """What `ask` returns for the first source that has the model. One that has none, cannot be reached, or gives
    something else in its place is passed over with a note; the last one's error is raised."""
    *others, last = wants
    for want in others:
        try:
            return ask(want)
        except (NotFoundError, DownloadError, ModelFileError) as error:
            report.note(f"{visible(ref_text(want.ref))}: {error.message}; trying the next source")
    return ask(last)


def source_of(ref: Ref) -> Source:
    """The module that serves this kind of reference."""
    return cast(Source, import_module(f"llmrun.models.sources.{_SOURCES[type(ref)]}"))


def _here(resolved: Resolved, found: Found) -> Resolved:
    return resolved._replace(paths=found.paths, kind=found.kind, source=found.source)


def _plain(ref: Ref) -> Resolved:
    name = ref_text(ref)
    return Resolved(name, (Want(name, ref),), {})


def _named(ref: AliasRef, catalog: Catalog, store: Store, report: Report) -> Resolved:
    text = ref_text(ref)
    entry = catalog.find(text)
    quant = None
    if entry is None and ref.quant:
        entry, quant = catalog.find(ref.name), ref.quant
    here = Path(text)
    if entry is None:
        if here.exists():
            return _plain(FileRef(here))
        stored = store.find(text)
        if stored is not None:  # under a name that has been taken out of models.toml since
            return Resolved(text, (Want(text, parse_ref(stored.source, look=False)),), {})
        near = catalog.near(ref.name)
        hint = f"did you mean {' or '.join(near)}?" if near else f"write {FORMS}"
        raise NotFoundError(f"no model is called '{text}'", hint)
    if here.exists():
        report.note(f"taking the model {entry.name}; for what lies in this folder write ./{text}")
    return _from_entry(entry, quant, catalog, ())


def _from_entry(entry: CatalogEntry, quant: str | None, catalog: Catalog, seen: tuple[str, ...]) -> Resolved:
    """`seen`: the names that led here, since one may stand for another."""
    if entry.name in seen:
        raise UsageError(f"the names {' -> '.join((*seen, entry.name))} lead in a circle", "correct models.toml")
    wants: list[Want] = []
    name = f"{entry.name}:{quant}" if quant else entry.name
    resolved = Resolved(name, (), entry.defaults, entry.licence, entry.licence_note)
    for source in entry.sources:
        ref = parse_ref(source, look=False)
        if isinstance(ref, AliasRef):
            inner = _inner(ref, entry, quant, catalog, (*seen, entry.name))
            wants += inner.wants
            resolved = resolved._replace(
                defaults={**inner.defaults, **resolved.defaults},
                licence=resolved.licence or inner.licence,
                licence_note=resolved.licence_note or inner.licence_note,
            )
        elif quant is None:
            wants.append(Want(entry.name, ref, entry.sha256, entry.size_bytes))
        elif isinstance(ref, HubRef):
            wants.append(Want(name, ref._replace(quant=quant, filename=None)))
    if not wants:
        raise UsageError(f"{entry.name} comes in one quantization only", f"write {entry.name}, without ':{quant}'")
    return resolved._replace(wants=tuple(wants))


def _inner(
    ref: AliasRef, outer: CatalogEntry, quant: str | None, catalog: Catalog, seen: tuple[str, ...]
) -> Resolved:
    entry, own_quant = catalog.find(ref_text(ref)), None
    if entry is None:
        entry, own_quant = catalog.find(ref.name), ref.quant
    if entry is None:
        raise NotFoundError(
            f"'{outer.name}' stands for '{ref_text(ref)}', which no model is called", "correct models.toml"
        )
    return _from_entry(entry, quant or own_quant, catalog, seen)
