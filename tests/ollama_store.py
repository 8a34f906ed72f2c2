"""An ollama folder as its program lays it out."""

import hashlib
import json
from pathlib import Path

LIBRARY = "registry.ollama.ai/library"


def add_model(folder: Path, name: str, tag: str, model: bytes, template: bytes = b"{{ .Prompt }}") -> Path:
    """`name` with registry and namespace. Returns the manifest."""
    layers = []
    for kind, data in (("model", model), ("template", template)):
        digest = hashlib.sha256(data).hexdigest()
        blob = folder / "blobs" / f"sha256-{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        media = f"application/vnd.ollama.image.{kind}"
        layers.append({"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)})
    manifest = folder / "manifests" / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    text = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": layers[1] | {"mediaType": "application/vnd.docker.container.image.v1+json"},
        "layers": layers,
    }
    manifest.write_text(json.dumps(text), encoding="utf-8")
    return manifest
