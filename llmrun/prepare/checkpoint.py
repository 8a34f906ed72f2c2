"""A checkpoint to convert: a folder here, or a repository fetched from the hub, GGUF files beside it or not."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from llmrun import paths
from llmrun.errors import UsageError
from llmrun.models.names import visible
from llmrun.models.refs import FileRef, HubRef, parse_ref
from llmrun.models.resolve import Resolved
from llmrun.report import Report

ON_THE_WAY = "Q4_K_M"  # what a checkpoint becomes when a command only wants to run it


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


def ready(found: Resolved, report: Report, *, quantized: bool) -> Resolved:
    """A checkpoint as a model that can be loaded: converted, and quantized unless the caller wants full precision.

    The result is kept by the source's revision, so that it is made once; what it was quantized from is not."""
    ref = found.wants[0].ref
    checkpoint = FoundCheckpoint(found.paths[0], ref.repo if isinstance(ref, HubRef) else None)
    if not quantized:
        return found._replace(paths=(converted(checkpoint, "auto", report),), kind="gguf")
    from llmrun.convert.pipeline import local_revision

    revision = checkpoint.folder.name if checkpoint.repo else local_revision(checkpoint.folder)
    key = hashlib.sha256(f"{checkpoint.repo or checkpoint.folder}\n{revision}".encode("utf-8", "replace")).hexdigest()
    target = paths.cache_dir() / "converted" / f"{checkpoint.folder.name[:60]}-{ON_THE_WAY}-{key[:16]}.gguf"
    if not target.is_file():
        report.note(f"{visible(found.name)} has no GGUF: it is converted and quantized to {ON_THE_WAY}, once")
        _quantize(converted(checkpoint, "auto", report), target, report)
    return found._replace(paths=(target,), kind="gguf")


def _quantize(source: Path, target: Path, report: Report) -> None:
    from llmrun.quant.call import Wish
    from llmrun.quant.quantize import Source, quantize

    try:
        quantize(Source((source,)), target, Wish(ON_THE_WAY), None, report, force=True)
    except KeyboardInterrupt:  # the library's thread cannot be stopped
        report.note("interrupted")
        os._exit(130)
    source.unlink(missing_ok=True)
