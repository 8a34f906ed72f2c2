"""What removing a model frees, and removing it. Nothing goes that another name still uses."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from llmrun.errors import NotFoundError, StoreError, UsageError
from llmrun.models import aliases, places
from llmrun.models.catalog import Catalog
from llmrun.models.names import visible
from llmrun.models.places import Place
from llmrun.models.refs import AliasRef, FileRef, HubRef, OllamaRef, Ref, parse_ref, ref_text
from llmrun.models.resolve import Resolved, resolve
from llmrun.models.sources import hf_removal, ollama
from llmrun.models.store import Store
from llmrun.report import Quiet


@dataclass(frozen=True)
class Removal:
    """`files` are what goes. `kept_for`: names that still use the data. `forgets`: the name goes from the user's
    models.toml too."""

    name: str
    place: Place | None
    files: tuple[str, ...]
    freed_bytes: int
    kept_for: tuple[str, ...] = ()
    forgets: bool = False


Act = Callable[[], object]


def plan_removal(text: str, catalog: Catalog, store: Store, others: bool = False) -> tuple[Removal, Act]:
    """What would go, and the call that does it. `others`: from the folders of other programs too.

    Raises NotFoundError for what is not here, UsageError for a file of the user's own or of another program's.
    The call raises StoreError where something cannot be removed.
    """
    ref = parse_ref(text)
    removal, act = _of_name(ref, catalog, store) if isinstance(ref, AliasRef) else _of_ref(ref, store, others)
    return removal, lambda: _run(act, removal)


def _run(act: Act, removal: Removal) -> None:
    try:
        act()
        if removal.forgets:
            aliases.remove_alias(removal.name)
    except OSError as error:
        where = error.filename or removal.name
        raise StoreError(
            f"cannot remove {visible(str(where))}: {error.strerror}", "is a program using it?"
        ) from error


def _of_name(ref: AliasRef, catalog: Catalog, store: Store) -> tuple[Removal, Act]:
    resolved = resolve(ref_text(ref), catalog, store, Quiet())
    own = aliases.own_tables()
    # A name that `llmrun alias` made goes with its data; one with settings of its own stays.
    forgets = aliases.is_bare(own.get(resolved.name))
    entry = store.find(resolved.name)
    if entry is not None:
        removal, act = _in_store(entry.name, store)
        return Removal(removal.name, "store", removal.files, removal.freed_bytes, removal.kept_for, forgets), act
    if resolved.paths and isinstance(resolved.wants[0].ref, FileRef):
        raise _own_file(resolved.paths[0], resolved.name if resolved.name in own else "")
    users = _other_users(resolved, own, catalog, store)
    if users:
        if not forgets:
            raise UsageError(f"{resolved.name} has no data of its own: it is {users[0]}'s", f"llmrun rm {users[0]}")
        return Removal(resolved.name, None, (), 0, users, True), _nothing
    if resolved.paths:
        hub = next(want.ref for want in resolved.wants if isinstance(want.ref, HubRef))
        removal, act = _in_hub(_located(resolved, hub))
        return Removal(resolved.name, "hub", removal.files, removal.freed_bytes, (), forgets), act
    if forgets:
        return Removal(resolved.name, None, (), 0, (), True), _nothing
    raise NotFoundError(f"{resolved.name} is not here", "llmrun list shows what is")


def _nothing() -> None:
    pass


def _located(resolved: Resolved, ref: HubRef) -> HubRef:
    found = parse_ref(resolved.source, look=False)
    return found if isinstance(found, HubRef) else ref


def _other_users(resolved: Resolved, own: Iterable[str], catalog: Catalog, store: Store) -> tuple[str, ...]:
    """Names, other than this one, that stand for the same data: the one it leads to, a name it was pulled under,
    and the user's others."""
    inner = [want.name for want in resolved.wants if want.name != resolved.name]
    stored = store.find_source(resolved.source) if resolved.source else None
    same = [name for name in own if name != resolved.name and _has_source(name, resolved.source, catalog, store)]
    return tuple(dict.fromkeys([*inner, *([stored.name] if stored else []), *same]))


def _has_source(name: str, source: str, catalog: Catalog, store: Store) -> bool:
    if not source or catalog.find(name) is None:
        return False
    try:
        return resolve(name, catalog, store, Quiet()).source == source
    except (NotFoundError, UsageError):
        return False


def _of_ref(ref: Ref, store: Store, others: bool) -> tuple[Removal, Act]:
    match ref:
        case FileRef(path):
            return _of_path(path.absolute(), others)
        case HubRef():
            return _in_hub(ref)
        case OllamaRef():
            return _in_ollama(ref, others)
    text = ref_text(ref)
    entry = store.find(text) or store.find_source(text)
    if entry is None:
        raise NotFoundError(f"{visible(text)} is not here", "llmrun list shows what is")
    return _in_store(entry.name, store)


def _in_store(name: str, store: Store) -> tuple[Removal, Act]:
    goes = store.what_goes(name)
    files = tuple(str(path) for path in goes.paths)
    return Removal(name, "store", files, goes.freed_bytes, goes.kept_for), lambda: store.remove(name)


def _in_hub(ref: HubRef) -> tuple[Removal, Act]:
    found = hf_removal.find_files(ref)
    files = tuple(str(path) for path in (*found.links, *found.blobs))
    return Removal(found.name, "hub", files, found.freed_bytes), lambda: hf_removal.remove_files(found)


def _in_ollama(ref: OllamaRef, others: bool) -> tuple[Removal, Act]:
    model = ollama.find(ref)
    name = ref_text(model.ref)
    if not others:
        raise UsageError(
            f"{name} belongs to ollama", f"ollama rm {name.removeprefix('ollama:')}, or --all to remove it"
        )
    used = {layer.path for other in ollama.list_models() if other.ref != model.ref for layer in other.layers}
    blobs = {layer.path for layer in model.layers} - used
    kept_for = tuple(
        ref_text(other.ref)
        for other in ollama.list_models()
        if other.ref != model.ref and set(other.files) & set(model.files)
    )
    paths = [model.manifest, *sorted(blobs)]
    freed_bytes = sum(path.stat().st_size for path in blobs if path.exists())
    return Removal(name, "ollama", tuple(map(str, paths)), freed_bytes, kept_for), lambda: _unlink(paths)


def _of_path(path: Path, others: bool) -> tuple[Removal, Act]:
    models = [found for found in places.in_lm_studio() if path in found.paths]
    if not models:
        raise _own_file(path)
    if not others:
        raise UsageError(f"{visible(str(path))} belongs to LM Studio", "--all removes it all the same")
    paths = list(models[0].paths)
    freed_bytes = sum(file.stat().st_size for file in paths)
    return Removal(str(paths[0]), "lmstudio", tuple(map(str, paths)), freed_bytes), lambda: _unlink(paths)


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _own_file(path: Path, name: str = "") -> UsageError:
    hint = f"llmrun alias --remove {name} forgets the name" if name else "delete it yourself, if you mean to"
    return UsageError(f"{visible(str(path))} is a file of your own, which llmrun does not delete", hint)
