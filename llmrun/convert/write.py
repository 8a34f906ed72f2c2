"""The file itself: header, metadata, then one tensor after another, under a temporary name until it is whole."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

from llmrun.convert.encode import Output, encode
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
    for output in outputs:
        kv.add_tensor_info(
            output.name, output.weight.shape, np.dtype(np.float32), output.n_bytes, raw_dtype=output.type
        )
    try:
        kv.write_header_to_file(part)
        kv.write_kv_data_to_file()
        kv.write_ti_data_to_file()
        assert kv.fout is not None
        odd = _write_tensors(kv.fout[0], outputs, kv.data_alignment, report)
        kv.fout[0].flush()
        os.fsync(kv.fout[0].fileno())
        kv.close()
        size_bytes = part.stat().st_size
        # llama.cpp aborts on some of what a strange config.json leads to.
        check_model(open_header(part))
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
        _discard(kv, part)
    return Written(size_bytes, odd)


def _write_tensors(file: BinaryIO, outputs: Sequence[Output], alignment: int, report: Report) -> dict[str, int]:
    total, done = sum(output.n_bytes for output in outputs), 0
    odd: dict[str, int] = {}
    file.write(bytes(-file.tell() % alignment))
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
        file.write(bytes(-written % alignment))
    return odd


def _discard(kv: gguf.GGUFWriter, part: Path) -> None:
    for file in kv.fout or []:
        with suppress(OSError):  # a full disk: its last buffer cannot be written, and the file goes anyway
            file.close()
    part.unlink(missing_ok=True)
