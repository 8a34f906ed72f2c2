"""A JSON Schema as a tree of nodes named by their JSON pointers: references followed, combinations taken apart.

Nothing is fetched. Keywords that a grammar cannot enforce are refused with the pointer of their place.
"""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from llmrun.errors import GrammarError

MAX_WAYS = 200
MAX_DEPTH = 60

Raw = dict[str, Any]
Paths = tuple[str, ...]
"""Nodes that all hold for one value."""

# What cannot be enforced, and the values with which it asks for nothing.
_UNENFORCED: dict[str, tuple[object, ...]] = {
    "not": (False,),
    "if": (),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "patternProperties": ({},),
    "propertyNames": (True, {}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "contains": (),
    "uniqueItems": (False,),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
ABOUT = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
}
"""The keywords that say something about values of one type."""
_CONSTRAINING = {"type", "enum", "const"}.union(*ABOUT.values())
HINT = "the README, under 'Structured output', lists what a schema may say"


def refuse(path: str, reason: str) -> GrammarError:
    return GrammarError(f"schema, at {path}: {reason}", HINT)


class Contradiction(GrammarError):
    """No value satisfies this part of the schema."""


def contradiction(path: str, reason: str) -> Contradiction:
    return Contradiction(f"schema, at {path}: {reason}", "no value can satisfy this; correct the schema")


def step(path: str, *keys: object) -> str:
    """The pointer to a part of a node."""
    return "/".join([path, *(str(key).replace("~", "~0").replace("/", "~1") for key in keys)])


def constrains(raw: Raw) -> bool:
    """Whether a node's own keywords, apart from combinations, say anything about a value."""
    return not _CONSTRAINING.isdisjoint(raw)


def show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Way:
    """One way to satisfy some nodes: the nodes whose own keywords all hold, and for each `oneOf` that was decided,
    its path and the branches that must not hold as well."""

    nodes: Paths = ()
    others: tuple[tuple[str, Paths], ...] = ()

    def __add__(self, more: "Way") -> "Way":
        return Way(tuple(dict.fromkeys(self.nodes + more.nodes)), tuple(dict.fromkeys(self.others + more.others)))


class Document:
    """One schema. Its nodes are named `#`, `#/properties/a`, ..."""

    def __init__(self, root: object) -> None:
        self.root = root
        self.checked: set[str] = set()

    def raw(self, path: str) -> object:
        """What stands at a pointer. Raises KeyError."""
        found: Any = self.root
        for key in path.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) and key.isdecimal() else found[key]
        return found

    def node(self, path: str) -> Raw | bool:
        """The schema at a pointer, checked for keywords that cannot be enforced."""
        raw = self.raw(path)
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            raise refuse(path, f"a schema is an object, true or false, not {show(raw)}")
        if path not in self.checked:
            self.checked.add(path)
            for key, harmless in _UNENFORCED.items():
                if key in raw and not any(raw[key] == value for value in harmless):
                    raise refuse(step(path, key), f"{key} cannot be enforced by a grammar")
            if path != "#" and "$id" in raw:
                raise refuse(step(path, "$id"), "a schema inside a schema with an $id of its own")
        return raw

    def refers(self, path: str, reference: object) -> str:
        """The pointer that a `$ref` at this node names."""
        place = step(path, "$ref")
        if not isinstance(reference, str):
            raise refuse(place, "a reference is a text")
        base, _, fragment = reference.partition("#")
        own = self.root.get("$id", "") if isinstance(self.root, dict) else ""
        if base and base != str(own).rstrip("#"):
            raise refuse(place, f"{show(reference)} is outside this schema, and nothing is fetched")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            raise refuse(place, f"{show(reference)} is no JSON pointer such as #/$defs/name")
        target = "#" + fragment
        try:
            self.raw(target)
        except (KeyError, IndexError, TypeError):
            raise refuse(place, f"{show(reference)} names nothing in this schema") from None
        return target

    def is_open(self, path: str) -> bool:
        """Whether the node allows any value at all."""
        raw = self.node(path)
        if isinstance(raw, bool):
            return raw
        return not constrains(raw) and not {"$ref", "allOf", "anyOf", "oneOf"} & raw.keys()

    def ways(self, paths: Paths, above: Paths = ()) -> list[Way]:
        """All ways to satisfy the nodes together; none where one of them is false."""
        found = [Way()]
        for path in paths:
            found = self.joined(paths[0], found, self.ways_of(path, above))
        return found

    def joined(self, path: str, left: list[Way], right: list[Way]) -> list[Way]:
        if len(left) * len(right) > MAX_WAYS:
            raise refuse(path, f"more than {MAX_WAYS} combinations of anyOf and oneOf branches")
        return list(dict.fromkeys(a + b for a in left for b in right))

    def ways_of(self, path: str, above: Paths) -> list[Way]:
        if path in above:
            raise refuse(path, "this refers to itself with no object or array in between")
        if len(above) > MAX_DEPTH:
            raise refuse(path, f"references and combinations nested more than {MAX_DEPTH} deep")
        raw = self.node(path)
        if isinstance(raw, bool) or self.is_open(path):
            return [Way()] if raw is not False else []
        found = [Way((path,))]
        inside = (*above, path)
        if "$ref" in raw:
            found = self.joined(path, found, self.ways_of(self.refers(path, raw["$ref"]), inside))
        if "allOf" in raw:
            for part in self.parts(path, raw, "allOf"):
                found = self.joined(path, found, self.ways_of(part, inside))
        if "anyOf" in raw:
            some = [way for part in self.parts(path, raw, "anyOf") for way in self.ways_of(part, inside)]
            found = self.joined(path, found, list(dict.fromkeys(some)))
        if "oneOf" in raw:
            found = self.joined(path, found, self.one_of(path, self.parts(path, raw, "oneOf"), inside))
        return found

    def parts(self, path: str, raw: Raw, key: str) -> Paths:
        if not isinstance(raw[key], list) or not raw[key]:
            raise refuse(step(path, key), f"{key} is a list of schemas")
        return tuple(step(path, key, index) for index in range(len(raw[key])))

    def one_of(self, path: str, parts: Paths, above: Paths) -> list[Way]:
        found = []
        for part in parts:
            others = tuple(other for other in parts if other != part)
            decided = Way((), ((step(path, "oneOf"), others),) if others else ())
            found += [way + decided for way in self.ways_of(part, above)]
        return found
