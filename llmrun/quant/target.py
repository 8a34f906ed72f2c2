"""From a size to a mix: what each type does to each tensor is measured, then bits are spent where they help most."""

import re
import threading
from dataclasses import dataclass, replace
from typing import NamedTuple

from llmrun.errors import UsageError
from llmrun.quant.call import MatrixFile, Wish
from llmrun.quant.error import Choice, Place, measure
from llmrun.quant.mix import Mix, choose, name_of, padded
from llmrun.quant.quantize import Quantized, Source, predict
from llmrun.report import Report, size_text


class Target(NamedTuple):
    """A file's bytes, or bits per weight over all tensors; one of them is 0."""

    n_bytes: int = 0
    bits: float = 0.0


_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_size(text: str) -> int:
    """Bytes of `4GB`, `3.5 GiB`, `900M`. Raises UsageError."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in _UNITS:
        raise UsageError(f"{text!r} is no size", "such as 4GB, 900MB or 3.5GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True)
class Chosen:
    """The wish that makes the mix, and what it would make."""

    wish: Wish
    mix: Mix
    predicted: Quantized


def find_mix(source: Source, target: Target, wish: Wish, matrix: MatrixFile | None, report: Report) -> Chosen:
    """`wish` gives all but the types. Raises UsageError for a size that is none, QuantizeError where it cannot be
    reached."""
    largest = predict(source, replace(wish, type="Q8_0"), matrix)
    changed = {t.name: t for t in largest.tensors if t.type_after == "Q8_0" or t.type_after != t.type_before}
    kept = sum(padded(t.bytes_after) for t in largest.tensors if t.name not in changed)
    overhead = largest.size_after - sum(padded(t.bytes_after) for t in largest.tensors)
    n_elements = sum(t.n_elements for t in largest.tensors)
    budget = target.n_bytes - overhead - kept if target.n_bytes else int(target.bits * n_elements / 8) - kept
    smallest = "4 MB" if target.n_bytes else "1 bit"
    if budget <= 0:
        raise UsageError(
            f"the tensors that stay as they are take {size_text(kept + overhead)} alone",
            f"give a larger size: the source has {size_text(source.size)}, not {smallest}",
        )
    places = [
        Place(path, header, tensor)
        for path, header in zip(source.paths, source.headers, strict=True)
        for tensor in header.tensors
        if tensor.name in changed
    ]
    options = _measure(places, matrix, wish, report)
    n_layer = max(1, source.n_layer)
    mix = choose(options, sensitivity(n_layer), budget)
    bits = 8 * mix.n_bytes / max(1, sum(changed[name].n_elements for name in mix.types))
    final = replace(wish, type=name_of(bits), tensor_types=(*wish.tensor_types, *mix.rules()))
    return Chosen(final, mix, predict(source, final, matrix))


def sensitivity(n_layer: int) -> dict[str, float]:
    """How much one relative error in a kind of tensor matters: the output matrix touches every logit at once, a
    layer's product is one of many that are added up."""
    return {"output": float(n_layer), "token_embd": float(n_layer)}


def _measure(places: list[Place], matrix: MatrixFile | None, wish: Wish, report: Report) -> dict[str, list[Choice]]:
    done, lock = 0, threading.Lock()

    def tick() -> None:
        nonlocal done
        with lock:
            done += 1
            report.progress("measuring types", done, len(places), "tensors")

    found = measure(places, matrix.imatrix if matrix else None, wish.threads, tick)
    return {place.tensor.name: choices for place, choices in zip(places, found, strict=True)}
