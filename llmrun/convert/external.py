"""llama.cpp's own convert_hf_to_gguf.py (or any program called the same way) in llmrun's place."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from llmrun.convert.files import shown
from llmrun.convert.plan import checked_folder, checked_output
from llmrun.convert.result import ConvertResult
from llmrun.errors import ConvertError, ModelFileError, NotFoundError
from llmrun.gguf.header import Header, open_header
from llmrun.report import Report

_KEPT_LINES = 40


def convert_externally(
    folder: Path, out: Path | None, converter: Path, *, type: str = "auto", force: bool = False, report: Report
) -> ConvertResult:
    """Runs `converter FOLDER --outtype TYPE --outfile FILE` and checks that FILE is a whole GGUF before it gets
    its name. A .py file runs in this Python, which must then have what it imports (torch, transformers).

    Raises ConvertError with the converter's last lines where it fails.
    """
    start = time.monotonic()
    folder = checked_folder(folder)
    out = folder if out is None else out
    out = checked_output(out / f"{folder.name}-{type}.gguf" if out.is_dir() else out, force)
    if not converter.is_file():
        raise NotFoundError(f"--converter {converter} is no file", "give the path of convert_hf_to_gguf.py")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    runner = [sys.executable] if converter.suffix == ".py" else []
    command = [*runner, str(converter.absolute()), str(folder), "--outtype", type, "--outfile", str(part)]
    try:
        lines = _run(command, report)
        try:
            header = open_header(part)
        except (ModelFileError, NotFoundError) as error:
            raise ConvertError(f"{converter.name} wrote no usable file: {error.message}", _last(lines)) from None
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return _result(out, header, time.monotonic() - start)


def _run(command: list[str], report: Report) -> list[str]:
    """Runs to the end and returns the last lines it printed."""
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for n, line in enumerate(process.stdout, start=1):
                lines = [*lines[1 - _KEPT_LINES :], line.rstrip()]
                report.progress("convert", n, None, "lines")
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status:
        raise ConvertError(f"{Path(command[-6]).name} ended with status {status}", _last(lines))
    return lines


def _last(lines: list[str]) -> str:
    said = [line for line in lines if line.strip()]
    if missing := next((line for line in said if "ModuleNotFoundError" in line), None):
        return f"{shown(missing)}: install it into {sys.executable}, or give a script that runs its own Python"
    return "its last line: " + shown(said[-1]) if said else "it printed nothing"


def _result(out: Path, header: Header, seconds: float) -> ConvertResult:
    data = header.metadata

    def text(key: str) -> str:
        value = data.get(key)
        return value if isinstance(value, str) else ""

    names = Counter(tensor.type.name for tensor in header.tensors)
    return ConvertResult(
        path=out,
        size_bytes=out.stat().st_size,
        tensors=dict(names),
        seconds=seconds,
        arch=text("general.architecture"),
        name=text("general.name"),
        n_params=sum(tensor.n_elements for tensor in header.tensors),
        file_type=names.most_common(1)[0][0] if names else "",
        tokenizer=text("tokenizer.ggml.model"),
        pre=text("tokenizer.ggml.pre"),
        notes=(),
    )
