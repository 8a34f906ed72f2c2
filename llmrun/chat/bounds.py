"""Operations whose result can dwarf their operands, or that cost more than reading these.

They are paid for before they run. Each check takes the arguments of the filter or string method that it
stands before. Knows nothing of jinja.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmrun.chat.budget import MAX_INT_BITS, Budget, LimitExceeded

MAX_PADDING = 1000
MAX_JSON_INDENT = 16
MAX_DATE_FORMAT = 200
PRINTF_FIELD = re.compile(r"%(?:\(([^)]*)\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")


def padding(width: Any) -> int:
    """A number of characters or digits to fill up to."""
    if not isinstance(width, int) or abs(width) > MAX_PADDING:
        raise LimitExceeded(f"it asks for a width of {str(width)[:20]}; at most {MAX_PADDING} is allowed")
    return int(width)


def charge_text(budget: Budget, length: int, *parts: Any) -> None:
    """Pay for a new string of `length` characters out of `parts`: one wide character makes all wide."""
    budget.charge(length if all(str(part).isascii() for part in parts) else 4 * length)


def check_pad(budget: Budget, text: Any, width: Any = 80, fillchar: str = " ") -> None:
    charge_text(budget, len(str(text)) + abs(padding(width)), text, fillchar)


def check_indent(budget: Budget, text: Any, width: Any = 4, first: bool = False, blank: bool = False) -> None:
    margin = len(width) if isinstance(width, str) else abs(padding(width))
    charge_text(budget, (str(text).count("\n") + 2) * margin, text, width)


def check_replace(budget: Budget, text: Any, old: Any, new: Any, count: Any = None) -> None:
    charge_text(budget, len(str(text)) + str(text).count(str(old)) * len(str(new)), text, new)


def check_elements(budget: Budget, values: Any, *_: Any, **__: Any) -> None:
    """A filter over a sequence: a string is one of as many strings as it has characters."""
    if isinstance(values, str):
        budget.charge(64 * len(values))


def check_join(budget: Budget, values: Any, d: Any = "", attribute: Any = None) -> None:
    """The filter; the method `join` has the same operands the other way round."""
    check_elements(budget, values)
    budget.charge(4 * len(str(d)) * len(values))


def check_join_method(budget: Budget, separator: str, values: Any) -> None:
    check_join(budget, values, separator)


def check_strip(budget: Budget, text: Any, chars: Any = None) -> None:
    """Stripping looks for each character of the text in all of `chars`."""
    budget.charge(len(str(text)) * len(chars or " "))


def check_search_from_end(budget: Budget, text: str, sought: Any = None, *_: Any) -> None:
    """From the end, Python looks for all of `sought` at each character of `text`."""
    budget.charge(len(text) * len(sought or " "))


def check_words(budget: Budget, text: Any) -> None:
    """Jinja cuts words with a regular expression and Python code."""
    budget.charge(32 * len(str(text)))


def check_round(budget: Budget, value: Any, precision: Any = 0, method: Any = "") -> None:
    padding(precision)


def check_sum(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> None:
    """Adding lists up copies the first ones again and again."""
    check_elements(budget, values)
    if not isinstance(start, (int, float)):
        raise LimitExceeded("it sums what is no number")


def check_tojson(
    budget: Budget,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> None:
    if indent is not None and (not isinstance(indent, int) or indent > MAX_JSON_INDENT):
        raise LimitExceeded(f"it asks for JSON indented by more than {MAX_JSON_INDENT}")
    if separators is not None and max(map(len, separators)) > MAX_JSON_INDENT:
        raise LimitExceeded(f"it asks for JSON with separators longer than {MAX_JSON_INDENT}")
    before = budget.left
    budget.deep(value)
    budget.charge((before - budget.left) * (6 if ensure_ascii else 2))


def check_printf(budget: Budget, form: Any, *values: Any, **named: Any) -> None:
    """`form % values`."""
    if not isinstance(form, str):
        return
    for key, *sizes in PRINTF_FIELD.findall(form):
        if "(" in key:
            raise LimitExceeded("it formats by a name with brackets")
        for size in sizes:
            padding(size if size == "*" else int(size[:9] or 0))
    before = budget.left
    budget.deep(values, named)
    budget.charge(4 * form.count("%") * (before - budget.left))


FILTER_CHECKS: Mapping[str, Callable[..., None]] = {
    "center": check_pad,
    "format": check_printf,
    "groupby": check_elements,
    "indent": check_indent,
    "join": check_join,
    "max": check_elements,
    "min": check_elements,
    "replace": check_replace,
    "round": check_round,
    "sort": check_elements,
    "sum": check_sum,
    "title": check_words,
    "tojson": check_tojson,
    "trim": check_strip,
    "unique": check_elements,
    "wordcount": check_words,
}
METHOD_CHECKS: Mapping[str, Callable[..., None]] = {
    "center": check_pad,
    "join": check_join_method,
    "ljust": check_pad,
    "lstrip": check_strip,
    "replace": check_replace,
    "rfind": check_search_from_end,
    "rindex": check_search_from_end,
    "rjust": check_pad,
    "rpartition": check_search_from_end,
    "rsplit": check_search_from_end,
    "rstrip": check_strip,
    "strip": check_strip,
    "zfill": check_pad,
}


def check_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Arithmetic: `+ - * / // % **`."""
    for value in (left, right):
        check_digits(value.bit_length() if isinstance(value, int) else 0)
    if operator == "%":
        check_printf(budget, left, right)
    elif operator == "+" and isinstance(left, (str, list, tuple)):
        budget.charge(size_of(left) + size_of(right))
    elif operator == "*":
        value, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(times, int):
            budget.charge(size_of(value) * max(0, times))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        check_digits(left.bit_length() * abs(right))


def check_digits(bits: int) -> None:
    if bits > MAX_INT_BITS:
        raise LimitExceeded("it computes with numbers of thousands of digits")


def size_of(value: Any) -> int:
    """Bytes of a string's or a list's own memory; none for other values."""
    if isinstance(value, str):
        return len(value) * (1 if value.isascii() else 4)
    return 8 * len(value) if isinstance(value, (list, tuple)) else 0


def check_concat(budget: Budget, values: Iterable[Any]) -> None:
    """`a ~ b`."""
    for value in values:
        budget.charge(size_of(value)) if isinstance(value, str) else budget.deep(value)
