"""From what the user typed to files on this machine. Knows every source; loads none before it is needed."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from llmrun.errors import DownloadError, NotFoundError, UsageError
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
    resolved = _named(ref, catalog, report) if isinstance(ref, AliasRef) else _plain(ref)
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
    *others, last = resolved.wants
    for want in others:
        try:
            return _fetch_from(want, resolved, store, report, fit_bytes)
        except (NotFoundError, DownloadError) as error:
            report.note(f"{visible(ref_text(want.ref))}: {error.message}; trying the next source")
    return _fetch_from(last, resolved, store, report, fit_bytes)


def offer(resolved: Resolved, report: Report, fit_bytes: int | None = None) -> Offer:
    """What a fetch would bring, from the first source that answers; downloads no model data."""
    *others, last = resolved.wants
    for want in others:
        try:
            return source_of(want.ref).offer(want._replace(fit_bytes=fit_bytes), report)
        except (NotFoundError, DownloadError) as error:
            report.note(f"{visible(ref_text(want.ref))}: {error.message}; trying the next source")
    return source_of(last.ref).offer(last._replace(fit_bytes=fit_bytes), report)


def source_of(ref: Ref) -> Source:
    """The module that serves this kind of reference."""
    return cast(Source, import_module(f"llmrun.models.sources.{_SOURCES[type(ref)]}"))


def _fetch_from(want: Want, resolved: Resolved, store: Store, report: Report, fit_bytes: int | None) -> Resolved:
    want = want._replace(fit_bytes=fit_bytes)
    return _here(resolved, source_of(want.ref).fetch(want, store, report))


def _here(resolved: Resolved, found: Found) -> Resolved:
    return resolved._replace(paths=found.paths, kind=found.kind, source=found.source)


def _plain(ref: Ref) -> Resolved:
    name = ref_text(ref)
    return Resolved(name, (Want(name, ref),), {})


def _named(ref: AliasRef, catalog: Catalog, report: Report) -> Resolved:
    text = ref_text(ref)
    entry = catalog.find(text)
    quant = None
    if entry is None and ref.quant:
        entry, quant = catalog.find(ref.name), ref.quant
    here = Path(text)
    if entry is None:
        if here.exists():
            return _plain(FileRef(here))
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
