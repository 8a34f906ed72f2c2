"""One call of `llama_model_quantize`: its parameters from a wish, and what its log says meanwhile."""

import ctypes
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrun.engine import capi
from llmrun.errors import QuantizeError
from llmrun.gguf.types import FILE_TYPES, TensorType
from llmrun.quant.imatrix_file import Imatrix
from llmrun.quant.types import COPY

_KEPT_TYPE = 7  # a file type that the library accepts and ignores where it only copies
_KV_INT, _KV_STR = 0, 3  # enum llama_model_kv_override_type
# "[   1/ 272] blk.0.ffn_down.weight - [ 1536, 576, 1, 1], type = f16, size = 1.7 MiB -> 0.5 MiB (q4_K)"
_TENSOR = re.compile(r"^\[ *\d+/ *\d+\] (\S+) +- \[ *([\d, ]+)\], type = +(\w+), ")
_NEW_TYPE = re.compile(r"-> +[\d.]+ MiB \((\w+)\)$")
_FALLBACK = re.compile(r"^warning: (\S+) +- ncols +(\d+) .*required for type +(\w+)\).*-> falling back to +(\w+)$")


@dataclass(frozen=True)
class Wish:
    """What to make. `type` is a file type or COPY; `tensor_types` are (pattern, type), the first match wins;
    `prune` are layer numbers to leave out. 0 threads: all there are."""

    type: str
    tensor_types: tuple[tuple[str, TensorType], ...] = ()
    output_type: TensorType | None = None
    embedding_type: TensorType | None = None
    pure: bool = False
    threads: int = 0
    keep_split: bool = False
    prune: tuple[int, ...] = ()
    allow_requantize: bool = False


@dataclass(frozen=True)
class MatrixFile:
    """An importance matrix, with the name it was given by (kept in the result's metadata as llama-quantize does)."""

    name: str
    imatrix: Imatrix


@dataclass
class Spoken:
    """The log of one call as whole lines, whatever pieces they came in."""

    lines: list[str] = field(default_factory=list)
    on_line: Callable[[str], None] | None = None
    _start: str = ""

    def add(self, text: str) -> None:
        *whole, self._start = (self._start + text).split("\n")
        for line in whole:
            self.lines.append(line)
            if self.on_line is not None:
                self.on_line(line)


def run(
    source: Path,
    target: Path,
    wish: Wish,
    matrix: MatrixFile | None,
    on_tensor: Callable[[], None],
    meanwhile: Callable[[], None],
) -> None:
    """Quantize in a thread, so that Ctrl-C is seen at once: the library itself cannot be stopped.

    `on_tensor` is called after each tensor, `meanwhile` several times a second, from the calling thread. Raises
    QuantizeError with the library's reason.
    """
    spoken = Spoken(on_line=lambda line: on_tensor() if " MiB" in line and "size = " in line else None)
    _call(source, target, _Parameters(wish, matrix, dry_run=False), spoken, meanwhile)


@dataclass(frozen=True)
class Planned:
    """What the library's dry run says: the type after, by tensor name, and (name, columns, wanted, got) of each
    tensor whose rows do not fit the type that was meant for it. Tensor types in the GGUF spelling."""

    types: dict[str, str]
    fallbacks: list[tuple[str, int, str, str]]


def dry_run(source: Path, wish: Wish, matrix: MatrixFile | None) -> Planned:
    """Raises QuantizeError with the library's reason."""
    spoken = Spoken()
    _call(source, source.with_name("none"), _Parameters(wish, matrix, dry_run=True), spoken)
    types, fallbacks = {}, []
    for line in spoken.lines:
        if found := _TENSOR.match(line):
            new = _NEW_TYPE.search(line)
            types[found[1]] = canonical(new[1] if new else found[3])
        elif found := _FALLBACK.match(line):
            fallbacks.append((found[1], int(found[2]), canonical(found[3]), canonical(found[4])))
    return Planned(types, fallbacks)


def canonical(name: str) -> str:
    """A tensor type as GGUF spells it: the library's log says q4_K."""
    return name.upper()


def _call(
    source: Path,
    target: Path,
    parameters: "_Parameters",
    spoken: Spoken,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    lib = capi.lib()
    status = []

    def quantize() -> None:
        status.append(lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), parameters.pointer))

    capi.log.lines.clear()
    capi.log.raw = spoken.add
    try:
        thread = threading.Thread(target=quantize, name="quantize", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.2)  # a wait without a limit would not see Ctrl-C on Windows
            meanwhile()
    finally:
        capi.log.raw = None
    if status != [0]:
        reason = capi.log.last_error("llama.cpp gave no reason").removeprefix("failed to quantize: ")
        raise QuantizeError(f"{source.name} was not quantized: {reason}")


class _Parameters:
    """llama_model_quantize_params with the arrays it points to, which must outlive the call."""

    def __init__(self, wish: Wish, matrix: MatrixFile | None, *, dry_run: bool) -> None:
        lib = capi.lib()
        raw = lib.llama_model_quantize_default_params()
        by_name = {name: number for number, name in FILE_TYPES.items()}
        raw.ftype = _KEPT_TYPE if wish.type == COPY else by_name[wish.type]
        raw.only_copy = wish.type == COPY
        raw.nthread = wish.threads
        raw.allow_requantize = wish.allow_requantize
        raw.pure, raw.keep_split, raw.dry_run = wish.pure, wish.keep_split, dry_run
        if wish.output_type is not None:
            raw.output_tensor_type = wish.output_type.id
        if wish.embedding_type is not None:
            raw.token_embedding_type = wish.embedding_type.id
        self._kept: list[Any] = []
        if wish.prune:
            raw.prune_layers = self._keep((ctypes.c_int32 * (len(wish.prune) + 1))(*sorted(wish.prune), -1))
        if wish.tensor_types:
            override = lib.llama_model_tensor_override
            items = [override(pattern.encode(), type.id) for pattern, type in wish.tensor_types]
            raw.tt_overrides = self._keep((override * (len(items) + 1))(*items, override(None, 0)))
        if matrix is not None:
            self._set_imatrix(lib, raw, matrix)
        self._raw = raw
        self.pointer = ctypes.byref(raw)

    def _keep(self, array: Any) -> Any:
        self._kept.append(array)
        return array

    def _set_imatrix(self, lib: Any, raw: Any, matrix: MatrixFile) -> None:
        data = lib.llama_model_imatrix_data
        items = []
        for name, entry in matrix.imatrix.entries.items():
            means = self._keep(entry.means())
            items.append(data(name.encode(), means.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), means.size))
        raw.imatrix = self._keep((data * (len(items) + 1))(*items, data(None, None, 0)))
        values = imatrix_metadata(matrix)
        override = lib.llama_model_kv_override
        array = self._keep((override * (len(values) + 1))())
        for place, (key, value) in zip(array, values.items(), strict=False):
            place.key = key.encode()
            if isinstance(value, int):
                place.tag, place.value.val_i64 = _KV_INT, value
            else:
                place.tag, place.value.val_str = _KV_STR, value
        raw.kv_overrides = array


def imatrix_metadata(matrix: MatrixFile) -> dict[str, int | bytes]:
    """What llama-quantize writes into a file that was made with a matrix, in its order. Texts are cut as it does."""
    values: dict[str, int | bytes] = {"quantize.imatrix.file": _cut(matrix.name)}
    if matrix.imatrix.datasets and matrix.imatrix.datasets[0]:
        values["quantize.imatrix.dataset"] = _cut(matrix.imatrix.datasets[0])
    values["quantize.imatrix.entries_count"] = len(matrix.imatrix.entries)
    if matrix.imatrix.n_chunks > 0:
        values["quantize.imatrix.chunks_count"] = matrix.imatrix.n_chunks
    return values


def _cut(text: str) -> bytes:
    return text.encode("utf-8")[:127]
