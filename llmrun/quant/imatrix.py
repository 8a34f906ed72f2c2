"""Importance matrices: a text goes through the model, and the inputs of each weight matrix are squared and summed.

Same rule and form as llama.cpp's llama-imatrix: chunks of n_ctx tokens, each begun with BOS where the model wants it.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmrun.engine.chunks import ChunkDecoder
from llmrun.engine.model import Model
from llmrun.errors import Interrupted, LlmrunError, QuantizeError, UsageError
from llmrun.quant import graph_node
from llmrun.quant.graph_node import Tensor
from llmrun.quant.imatrix_file import Activations, Imatrix, merge, read_imatrix, write_imatrix
from llmrun.report import Report

N_CTX = 512
_MIN_TOKENS = 16  # llama-imatrix leaves smaller batches out
SAVE_EVERY_S = 30.0


@dataclass(frozen=True)
class Collected:
    """A matrix file and what is in it. `n_resumed` chunks were there before; `seconds` are this run's."""

    path: Path
    n_tensors: int
    n_chunks: int
    n_resumed: int
    n_partial: int
    seconds: float


class Collector:
    """Sums over every matrix product of the graphs it is shown (see `Context`'s `watch`), chunk by chunk: what is not
    committed is of a chunk that may not come to its end."""

    def __init__(self) -> None:
        self.committed: dict[str, Activations] = {}
        self._pending: dict[str, Activations] = {}
        self.error: LlmrunError | None = None

    def watch(self, address: int, ask: bool) -> bool:
        """Never raises: the caller is C code."""
        node = graph_node.at(address)
        try:
            if ask:
                return self._wants(node)
            if graph_node.op_name(node.op) == "MUL_MAT":
                self._add_dense(node.src[0].contents, node.src[1].contents)
            else:
                self._add_experts(*(node.src[i].contents for i in range(3)))
        except LlmrunError as error:
            self.error = error
            return False
        return True

    def _wants(self, node: Tensor) -> bool:
        op = graph_node.op_name(node.op)
        if op == "MUL_MAT_ID":
            return True
        if op != "MUL_MAT":
            return False
        inputs = node.src[1].contents
        if inputs.ne[1] < _MIN_TOKENS or inputs.type != graph_node.F32:
            return False
        return graph_node.weight_name(node.src[0].contents).startswith("blk.")

    def _add_dense(self, weight: Tensor, inputs: Tensor) -> None:
        name = graph_node.weight_name(weight)
        squares = _values(inputs)
        n_matrices = weight.ne[2] * weight.ne[3]
        sums = np.zeros((n_matrices, inputs.ne[0]))
        for i3 in range(inputs.ne[3]):
            for i2 in range(inputs.ne[2]):
                matrix = (i3 % weight.ne[3]) * weight.ne[2] + i2 % weight.ne[2]
                rows = squares[i3, i2]
                sums[matrix] += np.einsum("ij,ij->j", rows, rows, dtype=np.float64)
        n_rows = inputs.ne[1] * inputs.ne[2] * inputs.ne[3] // n_matrices
        self._add(name, sums.reshape(1, -1), np.array([n_rows]))

    def _add_experts(self, weight: Tensor, inputs: Tensor, ids: Tensor) -> None:
        n_experts = weight.ne[2]
        values = _values(inputs)[0]  # (tokens, used or 1, inputs)
        shape, strides = (ids.ne[1], ids.ne[0]), (ids.nb[1], ids.nb[0])
        chosen: np.ndarray[Any, Any] = np.ndarray(shape, np.int32, graph_node.read(ids), strides=strides)
        sums, counts = np.zeros((n_experts, inputs.ne[0])), np.zeros(n_experts, dtype=np.int64)
        for slot in range(ids.ne[0]):
            rows = np.asarray(values[:, slot % inputs.ne[1]], dtype=np.float64)
            np.add.at(sums, chosen[:, slot], rows * rows)
            np.add.at(counts, chosen[:, slot], 1)
        self._add(graph_node.weight_name(weight), sums, counts)

    def _add(self, name: str, sums: "np.ndarray[Any, Any]", counts: "np.ndarray[Any, Any]") -> None:
        if not np.isfinite(sums).all():
            raise QuantizeError(f"the inputs of {name} are not finite", "the model's weights are likely damaged")
        new = Activations(sums, counts)
        self._pending[name] = self._pending[name].added(new, name) if name in self._pending else new

    def commit(self) -> None:
        for name, new in self._pending.items():
            before = self.committed.get(name)
            self.committed[name] = before.added(new, name) if before else new
        self._pending.clear()


def _values(tensor: Tensor) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """An F32 tensor as (ne3, ne2, ne1, ne0), whatever its strides."""
    shape, strides = tuple(reversed(tensor.ne)), tuple(reversed(tensor.nb))
    return np.ndarray(shape, np.float32, graph_node.read(tensor), strides=strides)


def collect(
    model: Model,
    tokens: Sequence[int],
    *,
    report: Report,
    n_threads: int,
    blank: Imatrix,
    first_chunk: int = 0,
    stop: Callable[[], bool] | None = None,
    save: Callable[[Imatrix], None] | None = None,
) -> Imatrix:
    """`blank` with the matrix of the chunks of `tokens` from `first_chunk` on. `save` gets what there is now and
    then, also when interrupted. Raises Interrupted, QuantizeError for activations that are not finite."""
    n_ctx = blank.chunk_size
    collector, total = Collector(), len(tokens) // n_ctx
    # Logits are wanted of all tokens, else the last layer computes only what its few outputs need.
    decoder = ChunkDecoder(model, n_ctx, n_threads, wanted_from=0, stop=stop, watch=collector.watch)
    done, saved_at = first_chunk, time.monotonic()

    def so_far() -> Imatrix:
        return replace(blank, entries=dict(collector.committed), n_chunks=done - first_chunk)

    try:
        for span in decoder.run(tokens, first_chunk):
            if collector.error is not None:
                raise collector.error
            report.progress("imatrix", span.chunks.start, total, "chunks")
            if span.last:
                collector.commit()
                done = span.chunks.stop
                if save is not None and done < total and time.monotonic() - saved_at > SAVE_EVERY_S:
                    save(so_far())
                    saved_at = time.monotonic()
    except Interrupted:
        if save is not None and done > first_chunk:
            save(so_far())
            raise Interrupted("interrupted", "what is done is kept: the same command goes on from there") from None
        raise
    finally:
        decoder.close()
        report.progress("imatrix", total, total, "chunks")
    return so_far()


def make_imatrix(
    model: Model,
    text: str,
    target: Path,
    *,
    report: Report,
    n_threads: int,
    dataset: str,
    n_ctx: int = N_CTX,
    n_chunks: int | None = None,
    parse_special: bool = False,
    stop: Callable[[], bool] | None = None,
    anew: bool = False,
) -> Collected:
    """Write the matrix of `text` to `target`, going on from what is there of the same model, text and chunks, or
    `anew`.

    Raises UsageError for a text of less than a chunk, QuantizeError where `target` is of another model or text."""
    tokens = model.vocab.tokenize(text, add_special=True, parse_special=parse_special)
    total = min(len(tokens) // n_ctx, n_chunks or len(tokens))
    if not total:
        raise UsageError(f"the text has {len(tokens)} tokens, a chunk {n_ctx}", "give a longer text, or a smaller -c")
    blank = Imatrix({}, 0, n_ctx, (dataset,), model.path.name, hashlib.sha256(text.encode()).hexdigest())
    before = None if anew else _resumed(target, blank, report, total)
    n_before = before.n_chunks if before else 0
    started = time.perf_counter()

    def save(new: Imatrix) -> None:
        write_imatrix(target, merge([before, new]) if before else new)

    made = collect(
        model,
        tokens[: total * n_ctx],
        report=report,
        n_threads=n_threads,
        blank=blank,
        first_chunk=n_before,
        stop=stop,
        save=save,
    )
    if made.entries:
        save(made)
    whole = read_imatrix(target)
    n_partial = sum(bool((entry.counts == 0).any()) for entry in whole.entries.values())
    if n_partial:
        report.note(f"{n_partial} of {len(whole.entries)} tensors have experts that the text never used")
    seconds = time.perf_counter() - started
    return Collected(target, len(whole.entries), whole.n_chunks, n_before, n_partial, seconds)


def _resumed(target: Path, wanted: Imatrix, report: Report, total: int) -> Imatrix | None:
    """What is there; a file that does not name its model or its text (llama.cpp's own) is taken by the data set's
    name."""
    if not target.exists():
        return None
    before = read_imatrix(target)
    if before.datasets != wanted.datasets or before.chunk_size != wanted.chunk_size:
        was = f"was made on {', '.join(before.datasets)} in chunks of {before.chunk_size}"
    elif before.model not in ("", wanted.model):
        was = f"was made from {before.model}"
    elif before.text_sha256 not in ("", wanted.text_sha256):
        was = f"was made when {', '.join(before.datasets)} held another text"
    else:
        if 0 < before.n_chunks < total:
            report.note(f"{target.name} has {before.n_chunks} of {total} chunks: going on from there")
        return before
    raise QuantizeError(f"{target} {was}", "give another file with -o, or --force to start anew")
