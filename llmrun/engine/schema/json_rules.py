"""The rules of JSON itself. White space is bounded, so that a model cannot spin in it for ever; so are digits."""

from functools import lru_cache

from llmrun.engine.gbnf.charset import CharSet, complement, contains, intersection, of
from llmrun.engine.gbnf.writer import Rules, char_class, literal

_PLAIN = complement((*((0, 0x1F),), *of('"\\')))
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}

_RULES = {
    "json-ws": r'"" | " " | "\n" [ \t]{0,32}',
    "json-hex": "[0-9A-Fa-f]",
    "json-unit": "[0-9A-CE-Fa-ce-f] json-hex{3} | [Dd] [0-7] json-hex{2} | "
    r'[Dd] [89ABab] json-hex{2} "\\u" [Dd] [C-Fc-f] json-hex{2}',
    "json-char": char_class(_PLAIN) + r' | "\\" (["\\/bfnrt] | "u" json-unit)',
    "json-string": r'"\"" json-char* "\""',
    "json-integer": '"0" | "-"? [1-9] [0-9]{0,17}',
    "json-number": '"-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([Ee] [+\\-]? [0-9]{1,2})?',
    "json-boolean": '"true" | "false"',
    "json-member": 'json-string ":" json-ws json-value',
    "json-object": '"{" json-ws (json-member ("," json-ws json-member)* json-ws)? "}"',
    "json-array": '"[" json-ws (json-value ("," json-ws json-value)* json-ws)? "]"',
    "json-value": 'json-object | json-array | json-string | json-number | json-boolean | "null"',
}
_USES = {name: [other for other in _RULES if other in body] for name, body in _RULES.items()}


def json_rule(rules: Rules, kind: str) -> str:
    """The name of the rule for any JSON value of a kind (`value` for all kinds), added with all it needs."""
    todo = ["json-" + kind]
    for name in todo:
        if name not in rules.bodies:
            rules.define(name, _RULES[name])
            todo += _USES[name]
    return "json-" + kind


def json_char(rules: Rules, chars: CharSet) -> str:
    """An expression for one character of the set inside a JSON string: escaped where it must be, and only there."""
    ways = _char_ways(chars)
    return ways[0] if len(ways) == 1 else rules.add("char", " | ".join(ways))


@lru_cache
def _char_ways(chars: CharSet) -> list[str]:
    ways = []
    plain = intersection(chars, _PLAIN)
    if plain:
        ways.append(char_class(plain))
    special = [point for point in (*range(0x20), 0x22, 0x5C) if contains(chars, point)]
    short = "".join(_SHORT[point] for point in special if point in _SHORT)
    if short:
        ways.append(literal("\\") + " " + char_class(of(short)))
    for first in "01":
        last = "".join(f"{p % 16:x}" for p in special if p not in _SHORT and p // 16 == int(first))
        if last:
            ways.append(literal("\\u00" + first) + " " + char_class(of(last)))
    return ways
