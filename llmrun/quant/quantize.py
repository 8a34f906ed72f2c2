"""Quantizing a model file: what it will be, to the byte, and making it. Knows no model references."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrun.errors import QuantizeError, UsageError
from llmrun.gguf.check import check_model
from llmrun.gguf.header import Header, open_header
from llmrun.quant import call
from llmrun.quant.call import MatrixFile, Wish
from llmrun.quant.file_size import FileLayout
from llmrun.quant.outputs import check_space, flush_begun, place, refuse_target, temporary_name
from llmrun.quant.types import COPY, DEFAULT_TENSOR_TYPE, FLOATS, NO_IMATRIX_HINT, TENSOR_TYPES_BY_NAME, needs_imatrix
from llmrun.report import Report


@dataclass(frozen=True)
class TensorChange:
    """One tensor before and after; `wanted` is the type its rows were too short for, "" where it got its own."""

    name: str
    shape: tuple[int, ...]
    type_before: str
    type_after: str
    bytes_before: int
    bytes_after: int
    wanted: str = ""

    @property
    def n_elements(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True)
class Fallback:
    """`n` tensors got another type, since their rows of `n_columns` are no multiple of the wanted type's block."""

    wanted: str
    got: str
    n: int
    n_columns: int


@dataclass(frozen=True)
class Quantized:
    """What was (or with `dry_run` would be) made. Sizes in bytes, of whole files; `paths` has each part of a split
    model."""

    type: str
    paths: tuple[Path, ...]
    size_before: int
    size_after: int
    bits_before: float
    bits_after: float
    seconds: float
    imatrix: str
    fallbacks: tuple[Fallback, ...]
    tensors: tuple[TensorChange, ...]
    dry_run: bool

    @property
    def n_fallback(self) -> int:
        return sum(fallback.n for fallback in self.fallbacks)


class Source:
    """A model's files, checked, with their headers."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.headers: tuple[Header, ...] = tuple(map(open_header, paths))
        check_model(*self.headers)
        self.size = sum(header.file_size for header in self.headers)
        arch = self.headers[0].metadata.get("general.architecture")
        n_layer = self.headers[0].metadata.get(f"{arch}.block_count", 0)
        self.n_layer = n_layer if isinstance(n_layer, int) else 0


def plan(source: Source, wish: Wish, matrix: MatrixFile | None = None) -> Quantized:
    """What quantizing would make, exact to the byte, from the library's dry run. Raises UsageError and
    QuantizeError where it cannot be done: no matrix for a type that needs one, one of another model."""
    _check(source, wish)
    result, origin = _planned(source, wish, matrix)
    _check_requantize(source, wish, result.tensors)
    check_matrix(result.tensors, wish, matrix, origin)
    return result


def predict(source: Source, wish: Wish, matrix: MatrixFile | None) -> Quantized:
    """As `plan`, without asking whether it may be done."""
    return _planned(source, wish, matrix)[0]


def _planned(source: Source, wish: Wish, matrix: MatrixFile | None) -> tuple[Quantized, dict[str, str]]:
    """The dry run's result, and each tensor's name before layers were pruned."""
    planned = call.dry_run(source.paths[0], wish, matrix)
    layout = FileLayout(source.headers, wish, matrix)
    wanted = {name: want for name, _, want, _ in planned.fallbacks}
    tensors = []
    for tensor in layout.tensors:
        after = TENSOR_TYPES_BY_NAME[planned.types[tensor.name]]
        n_bytes = tensor.n_elements // after.block_size * after.block_bytes
        tensors.append(
            TensorChange(
                tensor.name, tensor.shape, tensor.type.name, after.name, tensor.n_bytes, n_bytes,
                wanted.get(tensor.name, ""),
            )
        )  # fmt: skip
    counts = Counter((want, got, columns) for _, columns, want, got in planned.fallbacks)
    fallbacks = tuple(Fallback(want, got, n, columns) for (want, got, columns), n in counts.most_common())
    n_elements = sum(tensor.n_elements for tensor in tensors)
    result = Quantized(
        type=wish.type,
        paths=(),
        size_before=source.size,
        size_after=sum(layout.part_sizes([tensor.bytes_after for tensor in tensors])),
        bits_before=8 * sum(tensor.bytes_before for tensor in tensors) / n_elements,
        bits_after=8 * sum(tensor.bytes_after for tensor in tensors) / n_elements,
        seconds=0.0,
        imatrix=matrix.name if matrix else "",
        fallbacks=fallbacks,
        tensors=tuple(tensors),
        dry_run=True,
    )
    return result, layout.origin


def quantize(
    source: Source, target: Path, wish: Wish, matrix: MatrixFile | None, report: Report, *, force: bool = False
) -> Quantized:
    """Make `target`, or with `keep_split` its parts. The input is never touched, and a failure leaves no output.

    Raises UsageError, QuantizeError; KeyboardInterrupt leaves the library's thread running, so that the process
    must end by `os._exit`."""
    n_parts = len(source.paths) if wish.keep_split else 1
    targets = part_names(target, n_parts)
    for path in targets:
        refuse_target(path, source.paths, force=force)
    started = time.perf_counter()
    planned = plan(source, wish, matrix)
    check_space(target.parent, planned.size_after)
    parts = part_names(temporary_name(target), n_parts)
    done, total = 0, sum(tensor.bytes_before for tensor in planned.tensors)
    left = iter(planned.tensors)

    def on_tensor() -> None:
        nonlocal done
        tensor = next(left, None)
        done += tensor.bytes_before if tensor else 0
        report.progress("quantizing", done, total)

    try:
        out = _prefix(temporary_name(target)) if n_parts > 1 else parts[0]
        call.run(source.paths[0], out, wish, matrix, on_tensor, lambda: flush_begun(parts))
        for part, path in zip(parts, targets, strict=True):
            place(part, path)
    finally:
        report.progress("quantizing", total, total)
        for part in parts:
            part.unlink(missing_ok=True)
    size = sum(path.stat().st_size for path in targets)
    seconds = time.perf_counter() - started
    return Quantized(**{**vars(planned), "paths": targets, "size_after": size, "seconds": seconds, "dry_run": False})


@dataclass(frozen=True)
class TypeSize:
    """What one type would make of a source: bytes, bits per weight over all tensors, and what it asks for."""

    type: str
    size: int
    bits: float
    n_fallback: int
    needs_imatrix: bool


def list_sizes(source: Source) -> list[TypeSize]:
    """Every type for this source, smallest first, exact to the byte."""
    sizes = []
    for type in DEFAULT_TENSOR_TYPE:
        try:
            made = _planned(source, Wish(type), None)[0]
        except QuantizeError:  # a type whose rows have no fallback for this model
            continue
        needing = any(
            needs_imatrix(t.name, t.type_after, type) for t in made.tensors if t.type_before != t.type_after
        )
        sizes.append(TypeSize(type, made.size_after, made.bits_after, made.n_fallback, needing))
    return sorted(sizes, key=lambda size: size.size)


def part_names(target: Path, n_parts: int) -> tuple[Path, ...]:
    """`m.gguf` itself, or m-00001-of-00003.gguf and so on."""
    if n_parts == 1:
        return (target,)
    stem = _prefix(target).name
    return tuple(target.with_name(f"{stem}-{i:05d}-of-{n_parts:05d}.gguf") for i in range(1, n_parts + 1))


def _prefix(target: Path) -> Path:
    return target.with_name(target.name.removesuffix(".gguf"))


def _check(source: Source, wish: Wish) -> None:
    for pattern, _ in wish.tensor_types:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--tensor {pattern}: {error}", "quote the regular expression for the shell") from None
    if wish.tensor_types and (wish.type in FLOATS or wish.type == COPY):
        raise UsageError(f"--tensor does nothing with {wish.type}", "choose a quantized type for the rest")
    if wish.prune and not (set(wish.prune) <= set(range(source.n_layer)) and len(wish.prune) < source.n_layer):
        raise UsageError(f"--prune takes some of the layers 0 to {source.n_layer - 1}")


def _check_requantize(source: Source, wish: Wish, tensors: Sequence[TensorChange]) -> None:
    again = [t for t in tensors if t.type_before not in FLOATS and t.type_before != t.type_after]
    if again and not wish.allow_requantize:
        kinds = Counter(tensor.type_before for tensor in again).most_common(1)[0][0]
        raise QuantizeError(
            f"{source.paths[0].name} is quantized already ({len(again)} tensors, most of them {kinds}): "
            "doing it again adds the errors up",
            "use a file in F16 or BF16, or accept the loss with --allow-requantize",
        )


def check_matrix(
    tensors: Sequence[TensorChange], wish: Wish, matrix: MatrixFile | None, origin: dict[str, str]
) -> None:
    """Raises QuantizeError where tensors need a matrix that is not there or is another model's. `origin`: the name
    that a tensor had before layers were pruned."""
    changed = [t for t in tensors if t.type_before != t.type_after and t.type_after not in FLOATS]
    needing = [t for t in changed if needs_imatrix(t.name, t.type_after, wish.type)]
    if matrix is None:
        if needing:
            raise QuantizeError(
                f"{wish.type} needs an importance matrix (for {len(needing)} of {len(tensors)} tensors)",
                f"give one with --imatrix FILE, or --imatrix auto makes it; {NO_IMATRIX_HINT}",
            )
        return
    entries = matrix.imatrix.entries
    made = f"it was made from {matrix.imatrix.origin}"
    for tensor in changed:
        entry = entries.get(origin[tensor.name])
        n_inputs = tensor.shape[0] * (tensor.shape[2] if len(tensor.shape) > 2 else 1)
        if entry is not None and entry.sums.size != n_inputs and tensor.name != "token_embd.weight":
            raise QuantizeError(
                f"{matrix.name} is of another model: {tensor.name} has {n_inputs} inputs, the matrix "
                f"{entry.sums.size}; {made}",
                "llmrun imatrix MODEL makes one for this model",
            )
    lacking = [t for t in needing if origin[t.name] not in entries]
    if lacking or (changed and not any(origin[t.name] in entries for t in changed)):
        names = lacking or changed
        raise QuantizeError(
            f"{matrix.name} lacks {len(names)} of the {len(needing or changed)} tensors that {wish.type} needs it "
            f"for (such as {names[0].name}); {made}",
            "llmrun imatrix MODEL makes one for this model",
        )
