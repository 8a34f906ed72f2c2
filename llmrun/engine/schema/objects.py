"""Grammar expressions for objects: named properties in the schema's order, then others.

Branches that begin alike share their beginning. Else llama.cpp would follow each on a stack of its own, and in a
recursive schema their number would double with every level.
"""

from collections.abc import Callable
from typing import NamedTuple

from llmrun.engine.gbnf.writer import Rules, literal
from llmrun.engine.schema.branch import Branch
from llmrun.engine.schema.document import Paths, contradiction
from llmrun.engine.schema.json_rules import json_rule
from llmrun.engine.schema.scalars import json_text, key_rule

RuleOf = Callable[[Paths], str]


class ObjectPlan:
    """What one branch allows: which property may follow when, in an object of how many. Raises Contradiction."""

    def __init__(self, branch: Branch, rules: Rules, rule_of: RuleOf) -> None:
        members = branch.members()
        self.rules = rules
        self.path = branch.path
        self.low, self.high = members.low, members.high
        self.excluded = list(members.names)
        self.names = [name for name in members.names if name not in members.forbidden]
        self.values = {name: rule_of(members.names[name]) for name in self.names}
        self.required = members.required
        self.rest = None if members.rest is None else rule_of(members.rest)
        self.needed = frozenset(self.values[name] for name in members.required)
        self.used = frozenset([*self.values.values(), *([self.rest] if self.rest else [])])
        # Properties are counted only as far as it matters.
        self.most = max(1, self.low) if self.high is None else self.high
        self.fits = self.table()
        if not self.fits[0][0]:
            raise contradiction(self.path, "its properties cannot be as many, or as few, as it asks for")

    def table(self) -> list[list[bool]]:
        """`table[i][n]`: whether an object can end well that has n of the first i properties."""
        table = [[self.ends(count) for count in range(min(len(self.names), self.most) + 1)]]
        for index in reversed(range(len(self.names))):
            after = table[-1]
            optional = self.names[index] not in self.required
            row = []
            for count in range(min(index, self.most) + 1):
                taken = self.has_room(count) and after[self.counted(count)]
                row.append(taken or (optional and after[count]))
            table.append(row)
        return table[::-1]

    def has_room(self, count: int) -> bool:
        return self.high is None or count < self.high

    def counted(self, count: int) -> int:
        return min(count + 1, self.most)

    def ends(self, count: int) -> bool:
        """Whether the object can end with no more named properties. Names of others can repeat: one surely counts."""
        others = self.rest is not None and self.has_room(count)
        return self.low - count <= (1 if others else 0)

    def ending(self, count: int) -> list[str]:
        """Expressions for other properties and the end, after `count` named ones."""
        ws = json_rule(self.rules, "ws")
        close = f'{ws} "}}"' if count else '"}"'
        if self.rest is None or not self.has_room(count):
            return [close]
        low = max(0, self.low - count)
        high = None if self.high is None else self.high - count
        key = key_rule(self.excluded, self.rules, self.path)
        other = self.rules.add("other", f'{key} ":" {ws} {self.rest}')
        more = self.rules.add("others", f'"," {ws} {other}')
        if count:
            return [f"{self.rules.repeat(more, low, high)} {close}"]
        rest = self.rules.repeat(more, 0, None if high is None else high - 1)
        some = f'{other} {rest} {ws} "}}"'.replace("  ", " ")
        return [some] if low else [some, close]


class _Place(NamedTuple):
    """Before property `at` of a plan, with `written` of those before it written."""

    plan: int
    at: int
    written: int


Places = frozenset[_Place]


def write_objects(plans: list[ObjectPlan], rules: Rules) -> str:
    """An expression for the objects of all plans."""
    return _ObjectWriter(plans, rules).write()


class _ObjectWriter:
    def __init__(self, plans: list[ObjectPlan], rules: Rules) -> None:
        self.plans = plans
        self.rules = rules
        self.ws = json_rule(rules, "ws")
        self.names: dict[Places, str] = {}
        self.todo: list[Places] = []

    def write(self) -> str:
        start = frozenset(_Place(number, 0, 0) for number in range(len(self.plans)))
        text = f'"{{" {self.ws} {self.follow(start)}'
        while self.todo:
            places = self.todo.pop()
            ways = self.ways(places)
            self.rules.define(
                self.names[places], " | ".join(f"{head} {self.follow(rest)}".strip() for head, rest in ways)
            )
        return text

    def follow(self, places: Places) -> str:
        """What follows at the places: written out as long as there is one way on, then the name of a rule."""
        parts: list[str] = []
        while places:
            ways = self.ways(places)
            if len(ways) > 1:
                if places not in self.names:
                    self.names[places] = self.rules.reserve("rest")
                    self.todo.append(places)
                return " ".join([*parts, self.names[places]])
            parts.append(ways[0][0])
            places = ways[0][1]
        return " ".join(part for part in parts if part)

    def ways(self, places: Places) -> list[tuple[str, Places]]:
        """Expressions for what can come next, each with the places after it (none: the object is done)."""
        found: dict[str, set[_Place]] = {}
        single = len(places) == 1
        for place in sorted(places):
            plan = self.plans[place.plan]
            while place.at < len(plan.names):
                name = plan.names[place.at]
                taken = _Place(place.plan, place.at + 1, plan.counted(place.written))
                if plan.has_room(place.written) and plan.fits[taken.at][taken.written]:
                    separator = f'"," {self.ws} ' if place.written else ""
                    key = literal(json_text(name, plan.path) + ":")
                    found.setdefault(f"{separator}{key} {self.ws} {plan.values[name]}", set()).add(taken)
                place = place._replace(at=place.at + 1)
                if name in plan.required or not plan.fits[place.at][place.written]:
                    break
                if single:  # the other properties are left to the next place: one rule each, not one for each pair
                    return [*((text, frozenset(rest)) for text, rest in found.items()), ("", frozenset([place]))]
            else:
                for text in plan.ending(place.written):
                    found.setdefault(text, set())
        return [(text, frozenset(rest)) for text, rest in found.items()]
