"""Grammar expressions for numbers, strings and listed values."""

import json
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from llmrun.engine.gbnf.automaton import Both, Length, Machine, TooManyStates, Words, explore, write
from llmrun.engine.gbnf.charset import EVERY, intersection
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
    texts = list(dict.fromkeys(json_text(value, path) for value in values))
    if len(texts) <= MAX_LITERALS:
        return [literal(text) for text in texts]
    return [_written(Words(frozenset(texts)), rules, path, "enum", char_class, '""')]


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
        if low == 0 and high is None:
            return json_rule(rules, "string")
        char = json_rule(rules, "char")
        return f'"\\"" {rules.repeat(char, low, high)} "\\""'.replace("  ", " ")
    if low or high is not None:
        patterns.append(Length(low, high))
    machine = patterns[0]
    for more in patterns[1:]:
        machine = Both(machine, more)
    return _quoted(machine, rules, branch.path, "string")


def key_rule(names: Iterable[str], rules: Rules, path: str) -> str:
    """An expression for every property name but these."""
    words = frozenset(name for name in names if all(intersection(((ord(c), ord(c)),), EVERY) for c in name))
    if not words:
        return json_rule(rules, "string")
    return _quoted(Words(words, listed=False), rules, path, "key")


def _quoted(machine: Machine, rules: Rules, path: str, hint: str) -> str:
    return '"\\"" ' + _written(machine, rules, path, hint, lambda chars: json_char(rules, chars), '"\\""')


def _written(machine: Machine, rules: Rules, path: str, hint: str, char: "CharWriter", end: str) -> str:
    try:
        automaton = explore(machine)
    except TooManyStates:
        raise refuse(path, f"this {hint} needs too large a grammar; allow shorter or simpler ones") from None
    except PatternError as error:
        raise refuse(path, f"a pattern holds what a grammar cannot enforce: {error}") from None
    if automaton is None:
        raise contradiction(path, f"no {hint} satisfies all that is asked of it")
    return write(automaton, rules, hint, char, end)
