"""Grammar expressions for numbers, strings and listed values."""

import json
from collections.abc import Callable, Iterable
from fractions import Fraction
from os.path import commonprefix
from typing import Any

from llmrun.engine.gbnf.automaton import (
    Automaton,
    Both,
    Machine,
    Measured,
    Others,
    TooManyStates,
    explore,
    repetition,
    write,
)
from llmrun.engine.gbnf.charset import EVERY, CharSet, intersection
from llmrun.engine.gbnf.decimals import FLOAT_DIGITS, Decimals, Interval
from llmrun.engine.gbnf.pattern import PatternError
from llmrun.engine.gbnf.writer import Rules, char_class, literal
from llmrun.engine.schema.branch import Branch
from llmrun.engine.schema.document import contradiction, refuse, show
from llmrun.engine.schema.json_rules import json_char, json_rule

MAX_LITERALS = 16
"""More values of an enum are written as a tree of their common beginnings."""
MAX_DIGITS = 18
MAX_INTEGER_DIGITS = 60
MAX_REMAINDERS = 300


def literals(values: Iterable[Any], rules: Rules, path: str) -> list[str]:
    """Expressions for the JSON texts of the values."""
    listed = list(values)
    texts = {json_text(value, path): None for value in listed if not isinstance(value, list | dict)}
    found = [_compound(value, rules, path) for value in listed if isinstance(value, list | dict)]
    if len(texts) > MAX_LITERALS:
        return [*found, _tree(sorted(texts), rules)]
    return [*found, *map(literal, texts)]


def _tree(texts: list[str], rules: Rules) -> str:
    """An expression for the texts in which common beginnings are followed once."""
    start = commonprefix(texts)  # noqa: RUF071 - of texts, not of paths
    groups: dict[str, list[str]] = {}
    for text in texts:
        rest = text[len(start) :]
        groups.setdefault(rest[:1], []).append(rest)
    ways = [literal(group[0]) if len(group) == 1 else _tree(group, rules) for group in groups.values()]
    return f"{literal(start)} {rules.add('enum', ' | '.join(ways))}"


def _compound(value: object, rules: Rules, path: str) -> str:
    """An expression for one value, with white space where JSON allows it."""
    ws = json_rule(rules, "ws")
    if not value or not isinstance(value, list | dict):
        return literal(json_text(value, path))
    if isinstance(value, list):
        parts = [_compound(item, rules, path) for item in value]
    else:
        parts = [f"{literal(json_text(k, path) + ':')} {ws} {_compound(v, rules, path)}" for k, v in value.items()]
    first, last = "[]" if isinstance(value, list) else "{}"
    inside = f' "," {ws} '.join(parts)
    return f'"{first}" {ws} {inside} {ws} "{last}"'


def json_text(value: object, path: str) -> str:
    """The value as it is written; lone surrogates as escapes."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except ValueError:
        raise refuse(path, f"{show(value)} is no JSON value") from None
    return text


def number_rule(branch: Branch, rules: Rules, whole: bool) -> str:
    """An expression for the numbers, or only the integers, that the branch allows."""
    interval, step = branch.interval(), branch.multiple_of()
    if step is None and interval == Interval():
        return json_rule(rules, "integer" if whole else "number")
    if step is not None:
        _check_remainders(step, branch.path)
    if whole or (step is not None and step.denominator == 1):
        machine = _integers(interval, None if step is None else Fraction(step.numerator), branch.path)
    else:
        machine = _fractions(interval, step, branch.path)
    return _written(machine, rules, branch.path, "number", char_class, '""')


def _check_remainders(step: Fraction, path: str) -> None:
    rest = step.numerator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest > MAX_REMAINDERS or step.numerator > 10**6 or step.denominator > 2**10:
        raise refuse(path, f"multipleOf {step} needs too large a grammar")


def _integers(interval: Interval, step: Fraction | None, path: str) -> Decimals:
    low, high = interval.low, interval.high
    if low is not None:
        low = Fraction(low.__floor__() + 1 if interval.low_open else low.__ceil__())
    if high is not None:
        high = Fraction(high.__ceil__() - 1 if interval.high_open else high.__floor__())
    digits = max([MAX_DIGITS, *(len(str(abs(int(bound)))) + 1 for bound in (low, high) if bound is not None)])
    if digits > MAX_INTEGER_DIGITS:
        raise refuse(path, f"a bound has more than {MAX_INTEGER_DIGITS} digits")
    return Decimals(Interval(low, high), digits, 0, step)


def _fractions(interval: Interval, step: Fraction | None, path: str) -> Decimals:
    """Numbers of as many digits as a double tells apart, so that no validator's rounding crosses a bound."""
    limit = Fraction(10**FLOAT_DIGITS)
    low = None if interval.low is None or interval.low <= -limit else interval.low
    high = None if interval.high is None or interval.high >= limit else interval.high
    for bound in (low, high):
        if bound is not None and len(str(bound.numerator * 10**400 // bound.denominator).strip("-0")) > FLOAT_DIGITS:
            raise refuse(path, f"a bound has more than {FLOAT_DIGITS} digits")
    places = FLOAT_DIGITS if step is None else step.denominator.bit_length() - 1
    return Decimals(Interval(low, high, interval.low_open, interval.high_open), FLOAT_DIGITS, places, step)


def string_rule(branch: Branch, rules: Rules) -> str:
    """An expression for the strings that the branch allows."""
    low, high = branch.bounds("minLength", "maxLength")
    patterns: list[Machine] = list(branch.patterns())
    if not patterns:
        return (
            _repeated(json_rule(rules, "char"), low, high, rules)
            if low or high is not None
            else json_rule(rules, "string")
        )
    machine = patterns[0]
    for more in patterns[1:]:
        machine = Both(machine, more)
    automaton = _explored(machine, branch.path, "string")
    uniform = repetition(automaton)
    if uniform is not None:
        chars, least, most = uniform
        low, high = max(low, least), min((n for n in (high, most) if n is not None), default=None)
        if high is not None and high < low:
            raise contradiction(branch.path, "no string satisfies all that is asked of it")
        return _repeated(rules.add("char", json_char(rules, chars)), low, high, rules)
    if low or high is not None:
        machine = Measured(automaton, low, high)
    return _quoted(machine, rules, branch.path, "string")


def _repeated(char: str, low: int, high: int | None, rules: Rules) -> str:
    """An expression for strings of so many characters."""
    return f'"\\"" {rules.repeat(char, low, high)} "\\""'.replace("  ", " ")


def key_rule(names: Iterable[str], rules: Rules, path: str) -> str:
    """An expression for every property name but these."""
    words = frozenset(name for name in names if all(intersection(((ord(c), ord(c)),), EVERY) for c in name))
    if not words:
        return json_rule(rules, "string")
    return _quoted(Others(words), rules, path, "key")


def _quoted(machine: Machine, rules: Rules, path: str, hint: str) -> str:
    return '"\\"" ' + _written(machine, rules, path, hint, lambda chars: json_char(rules, chars), '"\\""')


def _written(machine: Machine, rules: Rules, path: str, hint: str, char: Callable[[CharSet], str], end: str) -> str:
    return write(_explored(machine, path, hint), rules, hint, char, end)


def _explored(machine: Machine, path: str, hint: str) -> Automaton:
    try:
        automaton = explore(machine)
    except TooManyStates:
        raise refuse(path, f"this {hint} needs too large a grammar; allow shorter or simpler ones") from None
    except PatternError as error:
        raise refuse(path, f"a pattern cannot be used: {error}") from None
    if automaton is None:
        raise contradiction(path, f"no {hint} satisfies all that is asked of it")
    return automaton
