"""A Hugging Face cache on disk, as its client lays it out."""

import hashlib
from pathlib import Path

COMMIT, OLDER = "a" * 40, "b" * 40


def cache_repo(hub: Path, repo: str, files: dict[str, bytes], commit: str = COMMIT, revision: str = "main") -> Path:
    """`hub` is HF_HOME/hub. Returns the repo's folder."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    for name, data in files.items():
        blob = folder / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (2 + name.count("/"))
        link.symlink_to(f"{up}blobs/{blob.name}")
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit, encoding="ascii")
    return folder
