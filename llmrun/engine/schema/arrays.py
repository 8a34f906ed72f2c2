"""Grammar expressions for arrays, written from their end to their beginning."""

from typing import NamedTuple

from llmrun.engine.gbnf.writer import Rules
from llmrun.engine.schema.branch import Branch, Elements
from llmrun.engine.schema.document import contradiction
from llmrun.engine.schema.json_rules import json_rule
from llmrun.engine.schema.objects import RuleOf


class ArrayWay(NamedTuple):
    """An expression, the rules of which each of its arrays has a value, and all rules it uses."""

    text: str
    needed: frozenset[str]
    used: frozenset[str]


def array_way(branch: Branch, rules: Rules, rule_of: RuleOf) -> ArrayWay:
    """The arrays that a branch allows."""
    elements = branch.elements()
    ws = json_rule(rules, "ws")
    first = elements.first if elements.high is None else elements.first[: elements.high]
    high = len(first) if elements.rest is None else elements.high
    if high is not None and elements.low > high:
        raise contradiction(branch.path, f"minItems is {elements.low}, but no more than {high} are allowed")
    items = [rule_of(paths) for paths in first]
    needed, used = set(items[: elements.low]), set(items)
    end = f'{ws} "]"' if items else '"]"'
    if high is None or high > len(items):
        other = rule_of(elements.rest or ())
        end = _others(elements, len(items), high, other, rules)
        used.add(other)
        if elements.low > len(items):
            needed.add(other)
    for index in reversed(range(len(items))):
        separator = f'"," {ws} ' if index else ""
        end = f"{separator}{items[index]} {end}"
        if index >= elements.low:
            close = f'{ws} "]"' if index else '"]"'
            end = rules.add("rest", f"{end} | {close}")
    return ArrayWay(f'"[" {ws} {end}', frozenset(needed), frozenset(used))


def _others(elements: Elements, count: int, high: int | None, other: str, rules: Rules) -> str:
    """What follows `count` items: others, as many as still have to or may come, and the end."""
    ws = json_rule(rules, "ws")
    low = max(0, elements.low - count)
    room = None if high is None else high - count
    more = rules.add("items", f'"," {ws} {other}')
    if count:
        return f'{rules.repeat(more, low, room)} {ws} "]"'
    rest = rules.repeat(more, max(0, low - 1), None if room is None else room - 1)
    some = f'{other} {rest} {ws} "]"'.replace("  ", " ")
    return some if low else rules.add("rest", f'{some} | "]"')
