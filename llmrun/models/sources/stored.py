"""What the sources that keep their models in llmrun's own store have in common."""

from collections.abc import Callable, Sequence
from pathlib import Path

from llmrun.models.manifest import Entry
from llmrun.models.names import visible
from llmrun.models.refs import ref_text
from llmrun.models.sources import Found, Want
from llmrun.models.store import Incoming, Store
from llmrun.report import Report

Download = Callable[[Path], Sequence[Incoming]]


def locate(want: Want, store: Store) -> Found | None:
    source = ref_text(want.ref)
    entry = _entry(want, source, store)
    if entry is None or store.damage(entry):
        return None
    return Found(store.paths(entry), source=source)


def fetch(want: Want, store: Store, report: Report, download: Download) -> Found:
    """`download(folder)` brings whole, verified files into the folder, which it may use for parts between runs."""
    source = ref_text(want.ref)
    with store.lock(source, report):
        entry = _entry(want, source, store)
        damage = store.damage(entry) if entry else None
        if damage:
            report.note(f"{visible(want.name)} is damaged, so it is fetched again: {damage}")
        if entry is None or damage:
            entry = store.add(want.name, source, _checked(download(store.work_dir(source))))
        elif entry.name != want.name:
            entry = store.link(want.name, entry)
    return Found(store.paths(entry), source=source)


def _entry(want: Want, source: str, store: Store) -> Entry | None:
    """Under its name, else under any other; not what the name once stood for."""
    entry = store.find(want.name)
    return entry if entry and entry.source == source else store.find_source(source)


def _checked(files: Sequence[Incoming]) -> Sequence[Incoming]:
    """Raises ModelFileError for a page, an archive or anything else that is no GGUF."""
    from llmrun.gguf.foreign import HEAD_BYTES, refuse_foreign

    for file in files:
        with file.path.open("rb") as data:
            head = data.read(HEAD_BYTES)
        if not head.startswith(b"GGUF"):
            error = refuse_foreign(head, file.path.stat().st_size, visible(file.name))
            file.path.unlink()
            raise error
    return files
