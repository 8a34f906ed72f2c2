"""A checkpoint to convert: a folder here, or a repository fetched from the hub, GGUF files beside it or not."""

from pathlib import Path
from typing import NamedTuple

from llmrun import paths
from llmrun.errors import UsageError
from llmrun.models.names import visible
from llmrun.models.refs import FileRef, HubRef, parse_ref
from llmrun.report import Report


class FoundCheckpoint(NamedTuple):
    """`repo` is org/name where it came from the hub; `folder` is then a snapshot, named by its commit."""

    folder: Path
    repo: str | None = None


def find_checkpoint(reference: str, report: Report) -> FoundCheckpoint:
    """Raises UsageError for a reference that can be no checkpoint, and what fetching raises."""
    ref = parse_ref(reference)
    if isinstance(ref, FileRef):
        return FoundCheckpoint(ref.path)
    if not isinstance(ref, HubRef) or ref.filename:
        raise UsageError(
            f"{visible(reference)} names no checkpoint", "give a checkpoint's folder, or its repository as ORG/NAME"
        )
    from llmrun.models.sources import hf

    if ref.quant:
        raise UsageError(f"{visible(reference)} names a quant", f"give {ref.repo} alone, and --type for the output")
    return FoundCheckpoint(hf.fetch_checkpoint(ref, report), ref.repo)


def converted(found: FoundCheckpoint, type: str, report: Report) -> Path:
    """The GGUF of a checkpoint, converted now or kept from before."""
    from llmrun.convert.pipeline import convert_cached, local_revision

    revision = found.folder.name if found.repo else local_revision(found.folder)
    store = paths.cache_dir() / "converted"
    return convert_cached(found.folder, revision, type, store, report, name=found.repo)[0]
