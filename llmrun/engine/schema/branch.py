"""What the keywords of some nodes, taken together, say about each type of value."""

import json
import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from llmrun.engine.gbnf.automaton import accepts
from llmrun.engine.gbnf.decimals import Interval
from llmrun.engine.gbnf.formats import FORMATS
from llmrun.engine.gbnf.pattern import Pattern, PatternError
from llmrun.engine.schema.document import (
    ABOUT,
    Document,
    Paths,
    Raw,
    Way,
    constrains,
    contradiction,
    refuse,
    show,
    step,
)

_TYPES = {
    "null": {"null"},
    "boolean": {"boolean"},
    "integer": {"integer"},
    "number": {"integer", "fraction"},
    "string": {"string"},
    "array": {"array"},
    "object": {"object"},
}
"""JSON Schema's names; `fraction` stands for the numbers that are no integers."""
EVERY_TYPE = frozenset(kind for kinds in _TYPES.values() for kind in kinds)
_INTEGER_FORMAT = re.compile(r"(u?)int(8|16|32|64)")


def same(value: object) -> str:
    """A key that is equal for values that JSON Schema takes for equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(same(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{same(v)}" for k, v in sorted(value.items())) + "}"
    return json.dumps(value)


def kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fraction"
    kinds: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


@dataclass
class Members:
    """The properties of an object: the nodes for each named one, in order; `rest` the nodes for others that are
    produced (None: none are), `closed` whether others are forbidden."""

    names: dict[str, Paths] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    rest: Paths | None = None
    closed: bool = False
    low: int = 0
    high: int | None = None


@dataclass(frozen=True)
class Elements:
    """The items of an array: the nodes of the first ones, those of all others (None: none are produced)."""

    first: tuple[Paths, ...]
    rest: Paths | None
    low: int
    high: int | None


class Branch:
    """The nodes of one way to satisfy a schema, read together."""

    def __init__(self, document: Document, way: Way, path: str) -> None:
        self.document = document
        self.path = way.nodes[0] if way.nodes else path
        self.others = way.others
        self.nodes: list[tuple[str, Raw]] = []
        for place in way.nodes:
            raw = document.node(place)
            assert isinstance(raw, dict)
            self.nodes.append((place, raw))
        self.required: dict[str, None] = {}
        self.forbidden: dict[str, None] = {}
        self.types = self.read_types()
        self.values = self.read_values()

    def each(self, *keys: str) -> list[tuple[str, Any]]:
        """The values of these keywords in all nodes, with their paths."""
        return [(step(path, key), raw[key]) for path, raw in self.nodes for key in keys if key in raw]

    def read_types(self) -> frozenset[str]:
        types = EVERY_TYPE
        for path, names in self.each("type"):
            listed = names if isinstance(names, list) else [names]
            if not listed or not all(isinstance(name, str) and name in _TYPES for name in listed):
                raise refuse(path, f"{show(names)} is no type; there are {', '.join(_TYPES)}")
            types &= {kind for name in listed for kind in _TYPES[name]}
            if not types:
                raise contradiction(path, f"{show(names)} excludes every type that is left")
        return types

    def produced_types(self) -> frozenset[str]:
        """The types to produce: where none is named, those that the other keywords are about."""
        if self.types != EVERY_TYPE or self.each("type"):
            return self.types
        about = [kind for kind, keys in ABOUT.items() if self.each(*sorted(keys))]
        return frozenset(kind for name in about for kind in _TYPES[name]) or self.types

    def is_open(self) -> bool:
        return not any(constrains(raw) for _, raw in self.nodes)

    def read_values(self) -> list[Any] | None:
        """The values of `enum` and `const` that satisfy the other keywords too; None where there is neither."""
        lists = [(path, values) for path, values in self.each("enum")]
        lists += [(path, [value]) for path, value in self.each("const")]
        if not lists:
            return None
        for path, values in lists:
            if not isinstance(values, list) or not values:
                raise refuse(path, "enum is a list of at least one value")
        path, values = lists[0]
        allowed = [{same(value) for value in more} for _, more in lists[1:]]
        found = {same(value): value for value in values if all(same(value) in keys for keys in allowed)}
        kept = [value for value in found.values() if self.admits(value)]
        if not kept:
            raise contradiction(path, "none of its values satisfies the rest of the schema")
        return kept

    def admits(self, value: Any, formats: bool = True) -> bool:
        """Whether a value satisfies the keywords about its type; `formats`: with those that not every validator
        checks. Raises GrammarError for arrays and objects that more is said about."""
        kind = kind_of(value)
        if kind not in self.types:
            return False
        if kind == "string":
            low, high = self.bounds("minLength", "maxLength")
            fits = low <= len(value) <= (math.inf if high is None else high)
            return fits and all(accepts(machine, value) for machine in self.patterns(formats))
        if kind in ("integer", "fraction"):
            number, step_size = number_of(self.path, value), self.multiple_of()
            return self.interval().holds(number) and (step_size is None or number % step_size == 0)
        if kind in ABOUT and (said := self.each(*sorted(ABOUT[kind]))):
            raise refuse(said[0][0], f"this beside an enum or const that holds an {kind}")
        return True

    def may_admit(self, value: Any) -> bool:
        """False only where no validator takes the value."""
        kind = kind_of(value)
        if self.values is not None:
            return same(value) in {same(own) for own in self.values}
        if kind in ("array", "object"):
            return kind in self.types
        # Dialects of patterns differ beyond ASCII and at line ends.
        plain = kind != "string" or (value.isascii() and value.isprintable())
        return kind in self.types and (not plain or self.admits(value, formats=False))

    def count(self, path: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            raise refuse(path, f"{show(value)} is no count")
        return int(value)

    def bounds(self, low_key: str, high_key: str) -> tuple[int, int | None]:
        """The strictest pair of a minimum and a maximum count."""
        lows = [self.count(path, value) for path, value in self.each(low_key)]
        highs = [(self.count(path, value), path) for path, value in self.each(high_key)]
        low = max(lows, default=0)
        high, path = min(highs, default=(None, ""))
        if high is not None and high < low:
            raise contradiction(path, f"{high_key} is less than {low_key}, {high} and {low}")
        return low, high

    def interval(self) -> Interval:
        found = Interval()
        for path, raw in self.nodes:
            for key, lower in (("minimum", True), ("maximum", False)):
                exclusive = "exclusive" + key.title()
                for name in (key, exclusive):
                    value = raw.get(name)
                    if name not in raw or (name == exclusive and isinstance(value, bool)):
                        continue
                    number = number_of(step(path, name), value)
                    # In draft 4 exclusiveMinimum is true or false and belongs to minimum.
                    is_open = name == exclusive or raw.get(exclusive) is True
                    more = Interval(number, None, is_open) if lower else Interval(None, number, False, is_open)
                    found = found.common(more)
        for _, name in self.each("format"):
            if isinstance(name, str) and (match := _INTEGER_FORMAT.fullmatch(name)):
                bits = int(match[2])
                span = (0, 2**bits - 1) if match[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
                found = found.common(Interval(Fraction(span[0]), Fraction(span[1])))
        return found

    def multiple_of(self) -> Fraction | None:
        """The least common multiple of all `multipleOf`."""
        found: Fraction | None = None
        for path, value in self.each("multipleOf"):
            number = number_of(path, value)
            if number <= 0:
                raise refuse(path, "multipleOf is greater than 0")
            if number.denominator & (number.denominator - 1):
                raise refuse(path, f"validators compute multiples of {value} in floating point, with other results")
            found = (
                number
                if found is None
                else Fraction(
                    math.lcm(found.numerator, number.numerator), math.gcd(found.denominator, number.denominator)
                )
            )
        return found

    def patterns(self, formats: bool = True) -> list[Pattern]:
        """What a string must match."""
        found = []
        for path, source in self.each("pattern"):
            if not isinstance(source, str):
                raise refuse(path, "a pattern is a text")
            try:
                found.append(Pattern(source))
            except PatternError as error:
                raise refuse(path, f"the pattern {show(source)} cannot be used: {error}") from None
        for path, name in self.each("format") if formats else []:
            if not isinstance(name, str) or name not in FORMATS:
                raise refuse(
                    path, f"format {show(name)} cannot be guaranteed; there are {', '.join(sorted(FORMATS))}"
                )
            found.append(Pattern(FORMATS[name]))
        return found

    def members(self) -> Members:
        found = Members()
        found.low, found.high = self.bounds("minProperties", "maxProperties")
        parts = [(path, raw, self.properties(path, raw)) for path, raw in self.nodes]
        names = list(dict.fromkeys(name for _, _, properties in parts for name in properties))
        required = list(dict.fromkeys(name for path, raw, _ in parts for name in self.read_required(path, raw)))
        others: list[str] = []
        for path, raw, _ in parts:
            if "additionalProperties" in raw:
                place = step(path, "additionalProperties")
                others.append(place)
                found.closed |= self.document.node(place) is False
        if not found.closed and (others or not names):
            found.rest = tuple(others)
        for name in [*names, *(name for name in required if name not in names)]:
            places: list[str] = []
            for path, raw, properties in parts:
                if name in properties:
                    places.append(step(path, "properties", name))
                elif "additionalProperties" in raw:
                    places.append(step(path, "additionalProperties"))
            found.names[name] = tuple(places)
            if any(self.document.node(place) is False for place in places):
                found.forbidden.add(name)
        found.required = dict.fromkeys([*required, *self.required])
        found.forbidden |= self.forbidden.keys()
        for name in found.required:
            if name in found.forbidden:
                raise contradiction(self.path, f"the property {show(name)} is required and forbidden")
        return found

    def properties(self, path: str, raw: Raw) -> Raw:
        found = raw.get("properties", {})
        if not isinstance(found, dict):
            raise refuse(step(path, "properties"), "properties is an object of schemas")
        return found

    def read_required(self, path: str, raw: Raw) -> list[str]:
        found = raw.get("required", [])
        if isinstance(found, bool):  # draft 3, where it belongs to the property
            raise refuse(step(path, "required"), "required is a list of names")
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise refuse(step(path, "required"), "required is a list of names")
        return found

    def elements(self) -> Elements:
        low, high = self.bounds("minItems", "maxItems")
        firsts: list[list[str]] = []
        rests: list[str | None] = []
        for path, raw in self.nodes:
            key = "items" if isinstance(raw.get("items"), list) else "prefixItems"
            first = raw.get(key, [])
            if not isinstance(first, list):
                raise refuse(step(path, key), f"{key} is a list of schemas")
            rest = "additionalItems" if key == "items" else "items"
            firsts.append([step(path, key, index) for index in range(len(first))])
            rests.append(step(path, rest) if rest in raw else None)
        places: list[Paths] = []
        longest = max(map(len, firsts), default=0)
        for index in range(longest + 1):
            at = [f[index] if index < len(f) else rest for f, rest in zip(firsts, rests, strict=True)]
            places.append(tuple(place for place in at if place))
            if any(self.document.node(place) is False for place in places[-1]):
                if low > index:
                    raise contradiction(self.path, f"minItems is {low}, but item {index} is forbidden")
                high = index if high is None else min(high, index)
                break
        rest_paths = places[-1] if len(places) > longest and (places[-1] or not longest or low > longest) else None
        return Elements(tuple(places[:longest]), rest_paths, low, high)


def number_of(path: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refuse(path, f"{show(value)} is no number")
    return Fraction(repr(value))
