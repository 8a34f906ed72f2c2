"""Converting a checkpoint from first check to finished file, and keeping what was converted for the next time."""

import hashlib
import time
from collections import Counter
from pathlib import Path

from llmrun.convert.files import shown
from llmrun.convert.plan import Plan, Preflight, make_plan
from llmrun.convert.result import ConvertResult
from llmrun.convert.write import write_file
from llmrun.models.checkpoint import is_beside_weights
from llmrun.report import Report

_RECIPE = 1
"""Counted up when the same checkpoint would come out different, so that kept files are made again."""


def preflight(
    folder: Path, out: Path | None = None, *, type: str = "auto", pre: str | None = None, name: str | None = None,
    force: bool = False,
) -> Preflight:  # fmt: skip
    """What `convert` would write, from headers and small files alone. Raises what `convert` would."""
    return make_plan(folder, out, type=type, pre=pre, name=name, force=force).preflight


def convert(
    folder: Path, out: Path | None = None, *, type: str = "auto", pre: str | None = None, name: str | None = None,
    force: bool = False, report: Report,
) -> ConvertResult:  # fmt: skip
    """Converts a checkpoint folder to one GGUF.

    `out` is a file, a folder to put one in, or None (into the checkpoint's folder). `name` is org/repository,
    where the folder's own name says nothing. Raises ConvertError, NotFoundError or UsageError before anything is
    written wherever that can be told, and leaves nothing under the final name in any case.
    """
    start = time.monotonic()
    plan = make_plan(folder, out, type=type, pre=pre, name=name, force=force)
    return carry_out(plan, start, report)


def carry_out(plan: Plan, start: float, report: Report) -> ConvertResult:
    """Writes what was planned; `start` is when the work began, by time.monotonic."""
    found = plan.preflight
    for note in found.notes:
        report.note(note)
    written = write_file(found.path, plan.kv, plan.outputs, report)
    notes = list(found.notes)
    for name, n in written.odd.items():
        notes.append(f"{name} has {n} values that are not finite; so it is in the checkpoint")
        report.note(notes[-1])
    return ConvertResult(
        path=found.path,
        size_bytes=written.size_bytes,
        tensors=dict(Counter(output.type.name for output in plan.outputs)),
        seconds=time.monotonic() - start,
        arch=found.arch,
        name=found.name,
        n_params=found.n_params,
        file_type=found.type,
        tokenizer=found.tokenizer,
        pre=found.pre,
        notes=tuple(notes),
    )


def convert_cached(
    folder: Path, revision: str, type: str, store: Path, report: Report, name: str | None = None
) -> tuple[Path, ConvertResult | None]:
    """The converted file of a checkpoint, made at the first call and kept in the folder `store`.

    `revision` says which state of the source it is: a hub commit, or `local_revision(folder)`. The result is None
    where the file was there already. Several processes make it once.
    """
    from filelock import FileLock

    key = hashlib.sha256("\n".join((str(_RECIPE), name or str(folder), revision, type)).encode()).hexdigest()
    stem = "".join(char if char.isalnum() or char in "-_." else "-" for char in (name or folder.name))
    path = store / f"{stem[:80]}-{type}-{key[:16]}.gguf"
    store.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        return path, None
    with FileLock(path.with_suffix(".lock")):
        if path.is_file():
            return path, None
        report.note(f"converting {shown(name or folder.name)} to GGUF; it is kept, so this happens once")
        return path, convert(folder, path, type=type, name=name, report=report)


def local_revision(folder: Path) -> str:
    """A digest of a local checkpoint's state: its small files' contents, its shards' names, sizes and times."""
    digest = hashlib.sha256()
    paths = [*folder.glob("*"), *folder.glob("*_Pooling/config.json"), *folder.glob("additional_chat_templates/*")]
    for path in sorted(path for path in paths if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name.endswith(".safetensors"):
            status = path.stat()
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
        elif is_beside_weights(name):
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
