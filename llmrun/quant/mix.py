"""The best mix of types for a size: bits go where they take most error away for each byte.

Pure: the errors are measured in `quant.error`. The sum over tensors of (relative error of the product x weight of its
kind) is made as small as the size allows, along the lower convex hull of each tensor's choices.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmrun.errors import QuantizeError
from llmrun.gguf.types import TensorType
from llmrun.quant.error import Choice
from llmrun.quant.types import TENSOR_TYPES_BY_NAME
from llmrun.report import size_text

_LAYER = re.compile(r"^blk\.(\d+)\.(.+)$")
# By bits per weight: what `general.file_type` says of a mix, and the tensors that no rule names get.
_NAMES = ((2.9, "Q2_K"), (3.9, "Q3_K_M"), (5.2, "Q4_K_M"), (6.1, "Q5_K_M"), (7.5, "Q6_K"), (99.0, "Q8_0"))


@dataclass(frozen=True)
class Mix:
    """`types` by tensor name; `error` is the sum that was made small."""

    types: Mapping[str, str]
    n_bytes: int
    error: float

    def summary(self) -> tuple[str, ...]:
        """One line a kind of tensor: how many got which type."""
        kinds: dict[str, Counter[str]] = defaultdict(Counter)
        for name, type in self.types.items():
            kinds[kind_of(name)][type] += 1
        return tuple(
            f"{kind}: " + ", ".join(f"{n} {type}" for type, n in counts.most_common())
            for kind, counts in sorted(kinds.items())
        )

    def rules(self) -> tuple[tuple[str, TensorType], ...]:
        """As `--tensor` takes them: one for each kind and type."""
        layers: dict[tuple[str, str], list[str]] = defaultdict(list)
        rules = []
        for name, type in self.types.items():
            found = _LAYER.match(name)
            if found:
                layers[found[2], type].append(found[1])
            else:
                rules.append((f"^{re.escape(name)}$", TENSOR_TYPES_BY_NAME[type]))
        for (kind, type), numbers in layers.items():
            rules.append((rf"^blk\.({'|'.join(numbers)})\.{re.escape(kind)}$", TENSOR_TYPES_BY_NAME[type]))
        return tuple(rules)


def kind_of(name: str) -> str:
    found = _LAYER.match(name)
    return (found[2] if found else name).removesuffix(".weight")


def name_of(bits: float) -> str:
    return next(name for most, name in _NAMES if bits <= most)


def choose(options: Mapping[str, Sequence[Choice]], weights: Mapping[str, float], budget: int) -> Mix:
    """The mix of at most `budget` bytes. `weights` by kind of tensor (1 where not named). Raises QuantizeError where
    even the smallest types take more."""
    chosen: dict[str, Choice] = {}
    steps: list[tuple[float, str, Choice]] = []
    for name, found in options.items():
        hull = lower_hull(found)
        chosen[name] = hull[0]
        weight = weights.get(kind_of(name), 1.0)
        for before, after in pairwise(hull):
            gain = weight * (before.error - after.error) / (after.n_bytes - before.n_bytes)
            steps.append((gain, name, after))
    used = sum(padded(choice.n_bytes) for choice in chosen.values())
    if used > budget:
        raise QuantizeError(
            f"the smallest types take {size_text(used)}, the size leaves {size_text(max(0, budget))} for them",
            "give a larger size; an importance matrix allows smaller types",
        )
    stuck: set[str] = set()
    for _, name, choice in sorted(steps, key=lambda step: -step[0]):
        more = padded(choice.n_bytes) - padded(chosen[name].n_bytes)
        if name in stuck or used + more > budget:
            stuck.add(name)  # its next steps build on this one
            continue
        chosen[name] = choice
        used += more
    error = sum(weights.get(kind_of(name), 1.0) * choice.error for name, choice in chosen.items())
    return Mix({name: choice.type for name, choice in chosen.items()}, used, error)


def lower_hull(found: Sequence[Choice]) -> list[Choice]:
    """The choices that no mixture of two others beats, smallest first: each step takes away less error a byte."""
    hull: list[Choice] = []
    for choice in sorted(found, key=lambda choice: (choice.n_bytes, choice.error)):
        if hull and choice.error >= hull[-1].error:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], choice):
            hull.pop()
        if hull and choice.n_bytes == hull[-1].n_bytes:
            continue
        hull.append(choice)
    return hull


def _slope(a: Choice, b: Choice) -> float:
    return (a.error - b.error) / (b.n_bytes - a.n_bytes) if b.n_bytes > a.n_bytes else float("inf")


def padded(n_bytes: int) -> int:
    return (n_bytes + 31) // 32 * 32
