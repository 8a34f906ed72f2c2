"""The file itself: header, metadata, then one tensor after another, under a temporary name until it is whole."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf

from llmrun.convert.encode import Output, encode
from llmrun.convert.layout import ALIGNMENT, header
from llmrun.errors import ConvertError, ModelFileError
from llmrun.gguf.check import check_model
from llmrun.gguf.header import open_header
from llmrun.report import Report

_TASK = "convert"


@dataclass(frozen=True)
class Written:
    """`odd`: tensors with numbers that are not finite in the checkpoint, and how many."""

    size_bytes: int
    odd: dict[str, int]


def write_file(path: Path, kv: gguf.GGUFWriter, outputs: Sequence[Output], report: Report) -> Written:
    """Writes beside `path`, then renames. Whatever ends it early, Ctrl-C included, leaves nothing behind."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(header(kv, outputs))
            odd = _write_tensors(file, outputs, report)
            file.flush()
            os.fsync(file.fileno())
        # llama.cpp aborts on some of what a strange config.json leads to.
        check_model(open_header(part))
        size_bytes = part.stat().st_size
        part.replace(path)
    except ModelFileError as error:
        raise ConvertError(
            f"the converted file could not be run: {error.message}",
            "nothing was written; compare config.json with the one at the model's source",
        ) from None
    except OSError as error:
        raise ConvertError(
            f"{path} could not be written: {error.strerror or error}",
            "nothing is left of it; free some space or name another output file",
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return Written(size_bytes, odd)


def _write_tensors(file: BinaryIO, outputs: Sequence[Output], report: Report) -> dict[str, int]:
    total, done = sum(output.n_bytes for output in outputs), 0
    odd: dict[str, int] = {}
    for output in outputs:
        written = 0
        for piece in encode(output, odd):
            file.write(piece)
            written += len(piece)
            report.progress(_TASK, done + written, total)
        if written != output.n_bytes:
            raise ConvertError(
                f"{output.name} came to {written} bytes instead of {output.n_bytes}", "please report this checkpoint"
            )
        done += written
        file.write(bytes(-written % ALIGNMENT))
    return odd
