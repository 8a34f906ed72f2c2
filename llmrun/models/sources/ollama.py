"""Models that ollama has on this machine, read in place. Knows its folder's layout, not its server.

manifests/HOST/NAMESPACE/NAME/TAG    a JSON list of layers
blobs/sha256-<hex>                   one a layer
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llmrun.errors import NotFoundError
from llmrun.models.names import visible
from llmrun.models.refs import OllamaRef, ref_text
from llmrun.models.sources import Found, Offer, RemoteFile, Want
from llmrun.models.store import Store
from llmrun.report import Report

_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_HEX = set("0123456789abcdef")


class Layer(NamedTuple):
    kind: str
    path: Path
    size_bytes: int


class OllamaModel(NamedTuple):
    """`layers` are all that the manifest names; `files` those that hold weights, whole on this disk."""

    ref: OllamaRef
    manifest: Path
    layers: tuple[Layer, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(layer.path for layer in self.layers if layer.kind == _MODEL_LAYER)

    @property
    def is_whole(self) -> bool:
        return bool(self.files) and all(_size(layer.path) == layer.size_bytes for layer in self.layers)


def locate(want: Want, store: Store) -> Found:
    """Raises NotFoundError: what ollama does not have here, only ollama can fetch."""
    assert isinstance(want.ref, OllamaRef)
    model = find(want.ref)
    return Found(model.files, source=ref_text(model.ref))


def find(ref: OllamaRef) -> OllamaModel:
    """Raises NotFoundError with the names there are."""
    for folder in folders():
        path = _manifest_path(folder, ref)
        model = _model_at(folder, path) if path else None
        if model:
            return model
    raise _absent(ref, [ref_text(model.ref) for model in list_models()])


def offer(want: Want, report: Report) -> Offer:
    found = locate(want, Store())
    files = tuple(RemoteFile(path.name, path.stat().st_size, path.name[7:], path.as_uri()) for path in found.paths)
    return Offer(files, source=found.source)


def fetch(want: Want, store: Store, report: Report) -> Found:
    return locate(want, store)


def folders() -> list[Path]:
    """Where ollama keeps models: its own setting, else the user's folder and those of a system service."""
    named = os.environ.get("OLLAMA_MODELS")
    if named:
        return [Path(named).expanduser()]
    places = [
        Path.home() / ".ollama/models",
        Path("/usr/share/ollama/.ollama/models"),
        Path("/var/lib/ollama/models"),
    ]
    return [place for place in places if _is_folder(place / "manifests")]


def list_models() -> Iterator[OllamaModel]:
    """All that are whole, by name. What cannot be read is passed over."""
    for folder in folders():
        root = folder / "manifests"
        for path in sorted(_walk(root)):
            model = _model_at(folder, path)
            if model:
                yield model


def _model_at(folder: Path, path: Path) -> OllamaModel | None:
    """The model that a manifest stands for, where all of it is here."""
    *names, tag = path.relative_to(folder / "manifests").parts
    model = _read(folder, path, OllamaRef(_short_name(names), tag)) if len(names) >= 2 else None
    return model if model and model.is_whole else None


def _walk(root: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(root):
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _short_name(names: list[str]) -> str:
    """As ollama shows it: without its own registry, and without `library`."""
    if names[:2] == [_HOST, _NAMESPACE]:
        return "/".join(names[2:])
    return "/".join(names[1:] if names[0] == _HOST else names)


def _manifest_path(folder: Path, ref: OllamaRef) -> Path | None:
    """Case does not count, as in ollama."""
    names = ref.name.split("/")
    if len(names) == 1:
        names = [_HOST, _NAMESPACE, *names]
    elif len(names) == 2:
        names = [_HOST, *names]
    path = folder / "manifests"
    for name in (*names, ref.tag):
        if name == "..":
            return None
        path = path / name if (path / name).exists() else _other_case(path, name)
        if not path.exists():
            return None
    return path if path.is_file() else None


def _other_case(folder: Path, name: str) -> Path:
    try:
        found = [path for path in folder.iterdir() if path.name.lower() == name.lower()]
    except OSError:
        found = []
    return found[0] if found else folder / name


def _read(folder: Path, path: Path, ref: OllamaRef) -> OllamaModel | None:
    """None for what is no manifest of a model in GGUF."""
    try:
        layers = tuple(_layer(folder, layer) for layer in json.loads(path.read_bytes())["layers"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return OllamaModel(ref, path, layers)


def _layer(folder: Path, layer: Any) -> Layer:
    """Raises ValueError for a digest that is none, which could lead out of the folder."""
    kind, sha256, size_bytes = layer["mediaType"], layer["digest"].removeprefix("sha256:"), layer["size"]
    if len(sha256) != 64 or not _HEX.issuperset(sha256) or not isinstance(size_bytes, int):
        raise ValueError(sha256)
    return Layer(kind, folder / "blobs" / f"sha256-{sha256}", size_bytes)


def _absent(ref: OllamaRef, names: list[str]) -> NotFoundError:
    from difflib import get_close_matches

    shown = ref_text(ref).removesuffix(":latest")
    if not folders():
        return NotFoundError(
            f"{shown} is not here: ollama has no models on this machine", "OLLAMA_MODELS names its folder"
        )
    near = get_close_matches(ref_text(ref), names, n=3, cutoff=0.5) or names[:5]
    hint = f"ollama has {', '.join(visible(name) for name in near)}" if near else "ollama has no models"
    return NotFoundError(
        f"ollama has no {shown.removeprefix('ollama:')} here", f"{hint}; ollama pull fetches another"
    )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
