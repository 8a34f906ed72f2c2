"""What a template may cost: a count of work, so that the same template is refused on every machine alike.

One unit is about a byte written or a nanosecond spent. Knows nothing of jinja.
"""

import sys
from collections.abc import Collection, Sized
from time import monotonic
from typing import Any

# Templates that models ship need a thousandth of this for a short conversation. Some look back over all turns
# at each turn, or put each turn behind all text before it, so what a long conversation may cost grows faster.
WORK_LIMIT = 64_000_000
WORK_PER_INPUT_BYTE = 64
WORK_PER_INPUT_BYTE_AND_TURN = 4
WORK_PER_TURN_SQUARED = 512
TIME_LIMIT_S = 5.0
TIME_PER_TURN_S = 0.01
CALL_COST = 64
NODE_COST = 32
MAX_DEPTH = 100
MAX_INT_BITS = 8192
VIEWS = tuple(type(view) for view in ({0: 0}.keys(), {0: 0}.values(), {0: 0}.items()))
CONTAINERS: tuple[type[Collection[Any]], ...] = (list, tuple, dict, set, frozenset, range, *VIEWS)


class LimitExceeded(Exception):
    """A template that would run too long or grow too large."""


class Budget:
    """What is left for one rendering of `n_turns` messages; `inputs` are all values it works on."""

    def __init__(self, inputs: Any = None, n_turns: int = 0) -> None:
        per_byte = WORK_PER_INPUT_BYTE + WORK_PER_INPUT_BYTE_AND_TURN * n_turns
        self.left = WORK_LIMIT + WORK_PER_TURN_SQUARED * n_turns**2 + per_byte * deep_size(inputs, sys.maxsize)
        self.deadline = monotonic() + TIME_LIMIT_S + TIME_PER_TURN_S * n_turns

    def charge(self, cost: int) -> None:
        self.left -= max(cost, 0)
        if self.left < 0 or monotonic() > self.deadline:
            raise LimitExceeded("it takes too long, or makes too much text")

    def shallow(self, value: Any = None) -> None:
        """Pay for passing over `value` once, not looking into its elements."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, Sized):
            self.charge(8 * len(value))

    def deep(self, *values: Any) -> None:
        """Pay for printing, comparing or hashing `values`, with all they hold, as often as they hold it."""
        for value in values:
            if isinstance(value, str):
                self.charge(len(value))
            elif isinstance(value, (*CONTAINERS, int)):
                self.charge(deep_size(value, self.left))

    def made(self, value: Any) -> Any:
        """Pay for `value`, just made; returns it."""
        if isinstance(value, (str, list, tuple, dict)):
            self.charge(sys.getsizeof(value))
            if not isinstance(value, str):
                self.charge(NODE_COST * len(value))
        return value


def deep_size(value: Any, limit: int) -> int:
    """About how many bytes `value` takes when printed; more than `limit` ends the count.

    Containers are followed as a printer follows them: one that is held twice counts twice, so a short
    template that doubles a list forty times is seen for what it is. Raises LimitExceeded for what cannot be
    followed safely: nesting too deep for the interpreter's stack, and numbers of thousands of digits.
    """
    size = 0
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack and size <= limit:
        item, depth = stack.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, CONTAINERS):
            if depth == MAX_DEPTH:
                raise LimitExceeded(f"it nests lists more than {MAX_DEPTH} deep")
            size += NODE_COST * (1 + len(item))
            if isinstance(item, dict):
                stack.extend((part, depth + 1) for pair in item.items() for part in pair)
            elif not isinstance(item, range) and size <= limit:
                stack.extend((part, depth + 1) for part in item)
        elif isinstance(item, int) and item.bit_length() > MAX_INT_BITS:
            raise LimitExceeded("it computes with numbers of thousands of digits")
    return size
