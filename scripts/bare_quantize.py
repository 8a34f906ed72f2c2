"""The bare llama_model_quantize call that llmrun's quantize is compared with, and what a fair clock for it needs."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import psutil


def bare_quantize(
    lib: Any, source: Path, target: Path, file_type: int, threads: int, matrix: tuple[Path, str] | None = None
) -> Callable[[], None]:
    """The call, made ready. `matrix` is a file and the name to keep of it."""
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = file_type, threads, True
    matrix_parts = _add_matrix(lib, params, *matrix) if matrix else None

    def call(_kept: object = matrix_parts) -> None:
        if lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) != 0:
            raise SystemExit("error: llama_model_quantize failed")

    return call


def _add_matrix(lib: Any, params: Any, path: Path, name: str) -> object:
    """As llama-quantize gives one, with what it writes of it. What is returned must outlive the call."""
    reader = gguf.GGUFReader(path)
    parts = {tensor.name: np.array(tensor.data, np.float32) for tensor in reader.tensors}
    tensors = [part.removesuffix(".in_sum2") for part in parts if part.endswith(".in_sum2")]
    means = [(parts[f"{one}.in_sum2"] / parts[f"{one}.counts"]).ravel() for one in tensors]
    pointer = ctypes.POINTER(ctypes.c_float)
    data = lib.llama_model_imatrix_data
    items = [
        data(one.encode(), mean.ctypes.data_as(pointer), mean.size) for one, mean in zip(tensors, means, strict=True)
    ]
    texts = {"file": name, "dataset": str(reader.get_field("imatrix.datasets").contents(0))}
    numbers = {"entries_count": len(items), "chunks_count": int(reader.get_field("imatrix.chunk_count").contents())}
    override, overrides = lib.llama_model_kv_override, []
    for key, text in texts.items():
        overrides.append(override(3, f"quantize.imatrix.{key}".encode()))
        overrides[-1].value.val_str = text.encode()[:127]
    for key, number in numbers.items():
        overrides.append(override(0, f"quantize.imatrix.{key}".encode()))
        overrides[-1].value.val_i64 = number
    params.imatrix = (data * (len(items) + 1))(*items)
    params.kv_overrides = (override * (len(overrides) + 1))(*overrides)
    return means, items, overrides, params.imatrix, params.kv_overrides


def touch_memory(n_bytes: int) -> None:
    """Write to this much memory once, half of what is free at most, and give it back.

    A virtual machine whose host takes back what is free pays for each page's first touch (2.4 s for a GB where this
    was measured, 0.24 s for one that was in use a moment ago): a clock must not show which side got such pages.
    """
    block = 64 << 20
    kept = [b"\1" * block for _ in range(min(n_bytes, psutil.virtual_memory().available // 2) // block)]
    del kept
