"""Grammar expressions for objects and arrays, written from their end to their beginning."""

from collections.abc import Callable

from llmrun.engine.gbnf.writer import Rules, literal
from llmrun.engine.schema.branch import Branch, Members
from llmrun.engine.schema.document import Paths, contradiction
from llmrun.engine.schema.json_rules import json_rule
from llmrun.engine.schema.scalars import json_text, key_rule

RuleOf = Callable[[Paths], str]
Way = tuple[str, frozenset[str]]
"""An expression, and the rules of which it always needs one value each."""


def object_way(branch: Branch, rules: Rules, rule_of: RuleOf) -> Way:
    """Objects with their properties in the schema's order, and others after them."""
    members = branch.members()
    return _ObjectWriter(branch, members, rules, rule_of).write()


class _ObjectWriter:
    """`places[n]` is the expression for what follows when n properties were written (counted up to `cap`);
    None where no valid end is left."""

    def __init__(self, branch: Branch, members: Members, rules: Rules, rule_of: RuleOf) -> None:
        self.path = branch.path
        self.members = members
        self.rules = rules
        self.rule_of = rule_of
        self.ws = json_rule(rules, "ws")
        self.cap = max(1, members.low) if members.high is None else members.high
        self.other = ""

    def write(self) -> Way:
        names = [name for name in self.members.names if name not in self.members.forbidden]
        values = {name: self.rule_of(self.members.names[name]) for name in names}
        places = [self.ending(count) for count in range(min(len(names), self.cap) + 1)]
        for index in reversed(range(len(names))):
            name = names[index]
            after = [*places, *places[-1:]] if self.members.high is None else [*places, None]
            optional_before = index > 0 and names[index - 1] not in self.members.required
            places = [
                self.place(count, name, values[name], after, optional_before)
                for count in range(min(index, self.cap) + 1)
            ]
        if places[0] is None:
            raise contradiction(self.path, "its properties cannot be as many, or as few, as it asks for")
        needed = frozenset(values[name] for name in self.members.required)
        return f'"{{" {self.ws} {places[0]}', needed

    def place(self, count: int, name: str, value: str, after: list[str | None], named: bool) -> str | None:
        ways = []
        taken = after[min(count + 1, self.cap)] if count < self.cap or self.members.high is None else None
        if taken is not None:
            separator = f'"," {self.ws} ' if count else ""
            ways.append(f"{separator}{literal(json_text(name, self.path) + ':')} {self.ws} {value} {taken}")
        if name not in self.members.required and after[count] is not None:
            ways.append(str(after[count]))
        if not ways:
            return None
        text = " | ".join(ways)
        return self.rules.add("rest", text) if len(ways) > 1 or named else text

    def ending(self, count: int) -> str | None:
        """Other properties after the named ones, and the end. Their names can repeat, so only one surely counts."""
        low = max(0, self.members.low - count)
        high = None if self.members.high is None else self.members.high - count
        close = f'{self.ws} "}}"' if count else '"}"'
        if self.members.rest is None or high == 0:
            return close if low == 0 else None
        if low > 1:
            return None
        if not self.other:
            key = key_rule(self.members.names, self.rules, self.path)
            self.other = self.rules.add("other", f'{key} ":" {self.ws} {self.rule_of(self.members.rest)}')
        member = self.other
        more = self.rules.add("others", f'"," {self.ws} {member}')
        if count:
            return f'{self.rules.repeat(more, low, high)} {self.ws} "}}"'
        rest = self.rules.repeat(more, 0, None if high is None else high - 1)
        some = f'{member} {rest} {self.ws} "}}"'.replace("  ", " ")
        return some if low else self.rules.add("rest", f"{some} | {close}")


def array_way(branch: Branch, rules: Rules, rule_of: RuleOf) -> Way:
    """Arrays: the first items one by one, then the others."""
    elements = branch.elements()
    ws = json_rule(rules, "ws")
    high = elements.high
    first = elements.first if high is None else elements.first[:high]
    if elements.rest is None:
        high = len(first)
    if elements.low > (elements.low if high is None else high):
        raise contradiction(branch.path, f"minItems is {elements.low}, but no more than {high} are allowed")
    items = [rule_of(paths) for paths in first]
    needed = set(items[: elements.low])
    close = f'{ws} "]"'
    place = close
    if high is None or high > len(first):
        other = rule_of(elements.rest or ())
        left = max(0, elements.low - len(first))
        room = None if high is None else high - len(first)
        if left:
            needed.add(other)
        more = rules.add("items", f'"," {ws} {other}')
        if first:
            place = f"{rules.repeat(more, left, room)} {close}"
        else:
            rest = rules.repeat(more, max(0, left - 1), None if room is None else room - 1)
            place = f"{other} {rest} {close}".replace("  ", " ")
            place = place if left else rules.add("rest", f'{place} | "]"')
    elif not first:
        place = '"]"'
    for index in reversed(range(len(items))):
        separator = f'"," {ws} ' if index else ""
        place = f"{separator}{items[index]} {place}"
        if index >= elements.low:
            place = rules.add("rest", f'{place} | {close if index else chr(34) + "]" + chr(34)}')
    return f'"[" {ws} {place}', frozenset(needed)
