"""Files and folders of the user's own, read in place."""

from pathlib import Path

from llmrun.errors import ModelFileError, NotFoundError, UsageError
from llmrun.models.names import visible
from llmrun.models.refs import FileRef
from llmrun.models.sources import Found, Offer, RemoteFile, Want
from llmrun.models.store import Store
from llmrun.report import Report


def locate(want: Want, store: Store) -> Found:
    """Raises NotFoundError for what is not there, UsageError for a folder of several models."""
    path = _path(want)
    if path.is_dir():
        return _in_folder(path)
    if not path.exists() and not _beside(path):
        raise _absent(path)
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{visible(str(path))} is a device or pipe, not a file", "a model must be a file")
    return Found(_parts(path), source=str(path))


def offer(want: Want, report: Report) -> Offer:
    found = locate(want, Store())
    files = tuple(RemoteFile(path.name, path.stat().st_size, None, path.as_uri()) for path in found.paths)
    return Offer(files, found.kind, found.source)


def fetch(want: Want, store: Store, report: Report) -> Found:
    return locate(want, store)


def _path(want: Want) -> Path:
    assert isinstance(want.ref, FileRef)
    return want.ref.path.absolute()


def _beside(path: Path) -> bool:
    """Whether other parts of the same split model are there: then it is a part that is missing."""
    from llmrun.models.quants import split_parts

    return any(path.with_name(name).is_file() for name in split_parts(path.name) or ())


def _parts(path: Path) -> tuple[Path, ...]:
    """All parts of a split model, whichever was named."""
    if "-of-" not in path.name:
        return (path,)
    from llmrun.models.quants import split_parts

    parts = [path.with_name(name) for name in split_parts(path.name) or [path.name]]
    missing = [visible(part.name) for part in parts if not part.is_file()]
    if missing:
        raise NotFoundError(
            f"{visible(path.name)} is one of {len(parts)} parts, and {', '.join(missing[:3])} is missing",
            f"put it beside the others in {visible(str(path.parent))}",
        )
    return tuple(parts)


def _in_folder(folder: Path) -> Found:
    from llmrun.models.quants import NamedFile, group_models

    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ModelFileError(f"cannot read {visible(str(folder))}: {error.strerror}") from error
    files = [NamedFile(name) for name in names if name.lower().endswith(".gguf") and (folder / name).is_file()]
    models = group_models(files)
    if len(models) == 1:
        return Found(_parts(folder / models[0].files[0].name), source=str(folder))
    if models:
        shown = ", ".join(visible(model.files[0].name) for model in models[:8])
        raise UsageError(
            f"{visible(str(folder))} holds several models: {shown}",
            f"name one: {visible(str(folder / models[0].files[0].name))}",
        )
    if "config.json" in names and any(name.endswith((".safetensors", ".bin")) for name in names):
        return Found((folder,), "checkpoint", str(folder))
    raise NotFoundError(
        f"{visible(str(folder))} holds no model",
        "a folder needs one GGUF file, or config.json beside safetensors files",
    )


def _absent(path: Path) -> NotFoundError:
    from difflib import get_close_matches

    try:
        names = [beside.name for beside in path.parent.iterdir() if beside.suffix.lower() == ".gguf"]
    except OSError:
        return NotFoundError(f"{visible(str(path))} is not there", f"there is no folder {visible(str(path.parent))}")
    near = get_close_matches(path.name, names, n=1, cutoff=0.5)
    if near:
        return NotFoundError(f"{visible(str(path))} is not there", f"did you mean {visible(near[0])}?")
    return NotFoundError(f"{visible(str(path))} is not there", "a file in a hub repo is written hf:ORG/REPO/FILE")
