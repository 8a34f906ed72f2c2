"""From references to what quantize works on: the source's files, the matrix, and a name for the result."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from llmrun.errors import UsageError
from llmrun.gguf.types import parse_quant
from llmrun.machine.cores import read_cores
from llmrun.prepare.loading import find
from llmrun.quant.call import MatrixFile
from llmrun.quant.quantize import Source
from llmrun.report import Report

if TYPE_CHECKING:
    from llmrun.models.resolve import Resolved


def find_source(reference: str, report: Report) -> "tuple[Source, Resolved]":
    """The model's files, fetched first where they are not here. Raises UsageError for an unconverted checkpoint."""
    found = find(reference, report)
    if found.kind != "gguf":
        raise UsageError(
            f"{reference} is a checkpoint, not a GGUF file", f"llmrun convert {reference} makes one, in F16"
        )
    return Source(found.paths), found


def read_matrix(name: str) -> MatrixFile:
    """An importance matrix by its file name. Raises NotFoundError, QuantizeError."""
    from llmrun.quant.imatrix_file import read_imatrix

    return MatrixFile(name, read_imatrix(Path(name).expanduser()))


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
