"""From references to what quantize works on: the source's files, the matrix, and a name for the result."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from llmrun import paths
from llmrun.gguf.types import parse_quant
from llmrun.machine.cores import read_cores
from llmrun.prepare.loading import find
from llmrun.quant.call import MatrixFile, Wish
from llmrun.quant.outputs import refuse_target
from llmrun.quant.quantize import Source, part_names
from llmrun.report import Report

if TYPE_CHECKING:
    from llmrun.models.resolve import Resolved
    from llmrun.quant.imatrix import Collected


def find_source(reference: str, report: Report) -> "tuple[Source, Resolved]":
    """The model's files, fetched first where they are not here. A checkpoint is converted first."""
    found = find(reference, report, quantized=False)
    return Source(found.paths), found


def read_matrix(name: str) -> MatrixFile:
    """An importance matrix by its file name. Raises NotFoundError, QuantizeError."""
    from llmrun.quant.imatrix_file import read_imatrix

    return MatrixFile(name, read_imatrix(Path(name).expanduser()))


def refuse_targets(source: Source, target: Path, wish: Wish, *, force: bool) -> None:
    """Before anything slow is done for it. Raises UsageError."""
    for path in part_names(target, len(source.paths) if wish.keep_split else 1):
        refuse_target(path, source.paths, force=force)


def matrix_for(
    name: str, reference: str, source: Source, report: Report, threads: int | None, stop: Callable[[], bool]
) -> MatrixFile | None:
    """The matrix that `name` stands for: a file, `auto` for one made here, `none`."""
    if name == "none":
        return None
    return auto_matrix(reference, source, report, threads, stop) if name == "auto" else read_matrix(name)


def default_target(reference: str, found: "Resolved", kind: str) -> Path:
    """The model's name with the type in place of the one it has: beside a local file, else in this folder."""
    path = Path(reference).expanduser()
    local = path.exists()
    stem = path.name.removesuffix(".gguf") if local else re.sub(r"[^\w.-]+", "-", found.name).strip("-.")
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", stem)
    head, dash, last = stem.rpartition("-")
    if dash and parse_quant(last):
        stem = head
    return (path.parent if local else Path()) / f"{stem}-{kind}.gguf"


def quantize_threads(threads: int | None) -> int:
    return threads or max(1, len(read_cores().cpus) or read_cores().logical)


def make_matrix(
    reference: str,
    file: str | None,
    target: Path,
    *,
    report: Report,
    threads: int | None,
    stop: Callable[[], bool],
    gpu_layers: int = -1,
    n_ctx: int = 512,
    n_chunks: int | None = None,
    seed: int = 1,
    special: bool = False,
    force: bool = False,
) -> "Collected":
    """An importance matrix of a model, on a file's text or on one that it writes. Raises UsageError where `target`
    is the model or lies in no folder."""
    from llmrun.prepare.measuring import load, measuring_threads, text_for
    from llmrun.quant.imatrix import make_imatrix

    model, found = load(reference, report, gpu_layers)
    refuse_target(target, found.paths, force=True)
    n_threads = measuring_threads(threads)
    text, dataset = text_for(file, "for the importance matrix", model, report, n_threads, seed, stop)
    return make_imatrix(
        model,
        text,
        target,
        report=report,
        n_threads=n_threads,
        dataset=dataset,
        n_ctx=n_ctx,
        n_chunks=n_chunks,
        parse_special=special,
        stop=stop,
        anew=force,
    )


def merge_matrices(sources: list[Path], target: Path, *, force: bool) -> "Collected":
    """Raises UsageError where `target` exists or is a source, QuantizeError for matrices of different models."""
    from llmrun.quant.imatrix import Collected
    from llmrun.quant.imatrix_file import merge, read_imatrix, write_imatrix

    refuse_target(target, sources, force=force)
    whole = merge([read_imatrix(path) for path in sources])
    write_imatrix(target, whole)
    n_partial = sum(bool((entry.counts == 0).any()) for entry in whole.entries.values())
    return Collected(target, len(whole.entries), whole.n_chunks, 0, n_partial, 0.0)


def auto_matrix(
    reference: str, source: Source, report: Report, threads: int | None, stop: Callable[[], bool]
) -> MatrixFile:
    """The matrix of the model's own text, made once and kept in the cache under the source's identity."""
    kept = paths.cache_dir() / "imatrix" / f"{_identity(source)}.gguf"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        begun = kept.with_suffix(".part")  # what an interrupt leaves is gone on from, and not taken for the whole
        make_matrix(reference, None, begun, report=report, threads=threads, stop=stop)
        begun.replace(kept)
    return MatrixFile("auto", read_matrix(str(kept)).imatrix)


def _identity(source: Source) -> str:
    """Of the model's files: their sizes, headers and a sample of each tensor's first bytes."""
    digest = hashlib.sha256()
    for path, header in zip(source.paths, source.headers, strict=True):
        with path.open("rb") as file:
            digest.update(f"{header.file_size}\n".encode() + file.read(header.data_offset))
            for tensor in header.tensors:
                file.seek(header.data_offset + tensor.offset)
                digest.update(file.read(64))
    return digest.hexdigest()[:32]
