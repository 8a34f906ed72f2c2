"""Importance matrices on disk: for each weight matrix, the sums of its inputs' squares, and how many there were.

Reads llama.cpp's GGUF form and its older .dat form; writes the GGUF form, which llama.cpp's programs read.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrun.errors import LlmrunError, NotFoundError, QuantizeError
from llmrun.gguf.check import check_complete
from llmrun.gguf.header import Header, TensorInfo, open_header
from llmrun.quant.outputs import replacing

SUMS, COUNTS = ".in_sum2", ".counts"
_MODEL_KEY, _TEXT_KEY = "imatrix.model", "imatrix.text_sha256"  # llmrun's own: what it was made from, and on
_MAX_LEGACY_ENTRIES = 1 << 17


@dataclass(frozen=True, eq=False)
class Activations:
    """What went into one weight matrix: `sums` is (matrices, inputs) of squares, `counts` (matrices,) of tokens.

    Dense weights have one matrix, those of experts one for each expert.
    """

    sums: "np.ndarray[Any, np.dtype[np.floating[Any]]]"
    counts: "np.ndarray[Any, np.dtype[np.int64]]"

    def means(self) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Mean squares, flat, as llama.cpp weighs errors by them; 1 for experts that were never used."""
        counts = self.counts.astype(np.float32)[:, None]
        rows = self.sums.astype(np.float32).reshape(len(self.counts), -1)
        means = np.divide(rows, counts, out=np.ones_like(rows), where=counts > 0)
        return np.ascontiguousarray(means.reshape(-1))

    def added(self, other: "Activations", name: str) -> "Activations":
        if self.sums.shape != other.sums.shape or self.counts.shape != other.counts.shape:
            raise QuantizeError(f"the matrices differ in the shape of {name}", "merge matrices of one model only")
        return Activations(self.sums + other.sums, self.counts + other.counts)


@dataclass(frozen=True, eq=False)
class Imatrix:
    """`entries` by the name of the weight tensor. `model` and the text's `text_sha256` are "" where the file does not
    say what it was made from."""

    entries: Mapping[str, Activations]
    n_chunks: int
    chunk_size: int
    datasets: tuple[str, ...] = ()
    model: str = ""
    text_sha256: str = ""

    @property
    def origin(self) -> str:
        """What it was made from and on, for messages."""
        texts = ", ".join(self.datasets)
        return " on ".join(part for part in (self.model, texts) if part) or "an unnamed model"


def read_imatrix(path: Path) -> Imatrix:
    """Raises NotFoundError, or QuantizeError for what is no importance matrix or is damaged."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        return _read_gguf(path) if magic == b"GGUF" else _read_legacy(path)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file", "llmrun imatrix MODEL makes one") from None
    except OSError as fault:
        raise QuantizeError(f"{path} cannot be read: {fault.strerror or fault}") from None


def _not_imatrix(path: Path, why: str) -> LlmrunError:
    return QuantizeError(f"{path} is not an imatrix file: {why}", "llmrun imatrix MODEL -o FILE makes one")


def _read_gguf(path: Path) -> Imatrix:
    header = open_header(path)
    check_complete(header)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    entries = {}
    with path.open("rb") as file:
        for name in sorted(tensors):
            if not name.endswith(SUMS):
                continue
            weight = name.removesuffix(SUMS)
            if weight + COUNTS not in tensors:
                raise _not_imatrix(path, f"it has sums without counts for {weight}")
            sums, counts = (_floats(file, header, tensors[key], path) for key in (name, weight + COUNTS))
            if not len(counts) or len(sums) % len(counts) or not np.isfinite(sums).all():
                raise _not_imatrix(path, f"its numbers for {weight} cannot be used")
            entries[weight] = Activations(sums.reshape(len(counts), -1), np.rint(counts).astype(np.int64))
    if not entries:
        raise _not_imatrix(path, "it holds no sums of activations")
    metadata = header.metadata
    datasets, model, text = (metadata.get(key) for key in ("imatrix.datasets", _MODEL_KEY, _TEXT_KEY))
    n_chunks, chunk_size = metadata.get("imatrix.chunk_count"), metadata.get("imatrix.chunk_size")
    return Imatrix(
        entries,
        n_chunks if isinstance(n_chunks, int) else 0,
        chunk_size if isinstance(chunk_size, int) else 0,
        tuple(text for text in datasets if isinstance(text, str)) if isinstance(datasets, Sequence) else (),
        model if isinstance(model, str) else "",
        text if isinstance(text, str) else "",
    )


def _floats(file: Any, header: Header, tensor: TensorInfo, path: Path) -> "np.ndarray[Any, Any]":
    if tensor.type.name != "F32":
        raise _not_imatrix(path, f"{tensor.name} is {tensor.type.name}, not F32")
    file.seek(header.data_offset + tensor.offset)
    return np.frombuffer(file.read(tensor.n_bytes), dtype="<f4")


def _read_legacy(path: Path) -> Imatrix:
    """The .dat form: a count, then name, calls, values for each; at the end the chunks and the data set."""
    raw = path.read_bytes()
    pos = 0

    def number() -> int:
        nonlocal pos
        if pos + 4 > len(raw):
            raise _not_imatrix(path, "it ends too early")
        (value,) = struct.unpack_from("<i", raw, pos)
        pos += 4
        return int(value)

    def take(n: int) -> bytes:
        nonlocal pos
        if n < 0 or pos + n > len(raw):
            raise _not_imatrix(path, "its lengths go past its end")
        pos += n
        return raw[pos - n : pos]

    n_entries = number()
    if not 1 <= n_entries <= _MAX_LEGACY_ENTRIES:
        raise _not_imatrix(path, "it does not begin like one")
    entries = {}
    for _ in range(n_entries):
        name = take(number()).decode("utf-8", "backslashreplace")
        n_calls, n_values = number(), number()
        sums = np.frombuffer(take(4 * n_values), dtype="<f4").astype(np.float32)
        if not n_values or not np.isfinite(sums).all():
            raise _not_imatrix(path, f"its numbers for {name} cannot be used")
        # The values are means times calls already.
        entries[name] = Activations(sums[None, :], np.array([max(1, n_calls)], dtype=np.int64))
    n_chunks = number() if pos < len(raw) else 0
    dataset = take(number()).decode("utf-8", "replace") if pos < len(raw) else ""
    return Imatrix(entries, n_chunks, 0, (dataset,) if dataset else ())


def write_imatrix(path: Path, imatrix: Imatrix) -> None:
    """In the form of llama.cpp's own llama-imatrix. Written whole or not at all."""
    import gguf

    with replacing(path) as part:
        writer = gguf.GGUFWriter(part, "imatrix")
        writer.add_type("imatrix")
        writer.add_array("imatrix.datasets", list(imatrix.datasets) or [""])
        writer.add_uint32("imatrix.chunk_count", imatrix.n_chunks)
        writer.add_uint32("imatrix.chunk_size", imatrix.chunk_size)
        for key, value in ((_MODEL_KEY, imatrix.model), (_TEXT_KEY, imatrix.text_sha256)):
            if value:
                writer.add_string(key, value)
        for name in sorted(imatrix.entries):
            entry = imatrix.entries[name]
            writer.add_tensor(name + SUMS, entry.sums.astype(np.float32))
            writer.add_tensor(name + COUNTS, entry.counts.astype(np.float32)[:, None])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def merge(matrices: Sequence[Imatrix]) -> Imatrix:
    """The matrix of all their texts together. Raises QuantizeError where they are of different models."""
    first, *others = matrices
    entries = dict(first.entries)
    for other in others:
        for name, entry in other.entries.items():
            entries[name] = entries[name].added(entry, name) if name in entries else entry
        if other.chunk_size != first.chunk_size:
            raise QuantizeError(
                f"the matrices have chunks of {first.chunk_size} and {other.chunk_size} tokens",
                "merge matrices made with one -c",
            )
    datasets = tuple(dict.fromkeys(text for matrix in matrices for text in matrix.datasets))
    text = first.text_sha256 if len({matrix.text_sha256 for matrix in matrices}) == 1 else ""
    return Imatrix(entries, sum(m.n_chunks for m in matrices), first.chunk_size, datasets, first.model, text)
