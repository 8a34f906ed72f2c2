"""Writes GBNF: rules with names of their own, literals, character classes, repetitions of any count."""

import re

from llmrun.engine.gbnf.charset import CharSet
from llmrun.errors import GrammarError

BLOCK = 500
"""Longer repetitions are nested: llama.cpp takes 2000 at most, and makes a rule for each optional repeat."""
MAX_TEXT = 2_000_000

_SHORT = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\"}
_IN_CLASS = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", ord("]"): "\\]", ord("["): "\\["} | {
    ord("\\"): "\\\\",
    ord("-"): "\\-",
    ord("^"): "\\x5E",
}


def _escape(point: int, short: dict[int, str]) -> str:
    if point in short:
        return short[point]
    if 0x20 <= point < 0x7F:
        return chr(point)
    if point <= 0xFF:
        return f"\\x{point:02X}"
    return f"\\u{point:04X}" if point <= 0xFFFF else f"\\U{point:08X}"


def literal(text: str) -> str:
    return '"' + "".join(_escape(ord(c), _SHORT) for c in text) + '"'


def char_class(chars: CharSet) -> str:
    parts = []
    for low, high in chars:
        parts.append(_escape(low, _IN_CLASS))
        if high > low:
            parts.append(("-" if high > low + 1 else "") + _escape(high, _IN_CLASS))
    return "[" + "".join(parts) + "]"


class Rules:
    """The rules of one grammar. Equal bodies share a rule."""

    def __init__(self) -> None:
        self.bodies: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.size = 0

    def reserve(self, hint: str) -> str:
        """A new name, made from the hint, whose body is defined later. It never begins with json-."""
        base = re.sub(r"[^A-Za-z0-9]+", "-", hint).strip("-")[:24].removeprefix("json-") or "r"
        name = base if base not in self.bodies else f"{base}-{len(self.bodies)}"
        self.bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        self.bodies[name] = body
        self.size += len(name) + len(body) + 6
        if self.size > MAX_TEXT:
            raise GrammarError(
                f"the schema makes a grammar of more than {MAX_TEXT} characters", "take parts of the schema out"
            )

    def add(self, hint: str, body: str) -> str:
        """The name of a rule with this body."""
        if body not in self.names:
            self.names[body] = self.reserve(hint)
            self.define(self.names[body], body)
        return self.names[body]

    def repeat(self, item: str, low: int, high: int | None) -> str:
        """`item` (one rule name or class) from `low` to `high` times; high None: without end. Not empty."""
        if high is not None:
            return " ".join(part for part in (self.exactly(item, low), self.at_most(item, high - low)) if part)
        return f"{self.exactly(item, low - 1)} {item}+".lstrip() if low else f"{item}*"

    def exactly(self, item: str, times: int) -> str:
        if times <= BLOCK:
            return f"{item}{{{times}}}" if times > 1 else item * times
        blocks, rest = divmod(times, BLOCK)
        return f"{self.exactly(self.block(item), blocks)} {self.exactly(item, rest)}".rstrip()

    def at_most(self, item: str, times: int) -> str:
        if times <= BLOCK:
            return "" if times == 0 else f"{item}{{0,{times}}}" if times > 1 else f"{item}?"
        blocks, rest = divmod(times, BLOCK)
        block = self.block(item)
        fewer = f"{self.at_most(block, blocks - 1)} {self.at_most(item, BLOCK - 1)}".lstrip()
        return f"({fewer} | {self.exactly(block, blocks)} {self.at_most(item, rest)})".replace(" )", ")")

    def block(self, item: str) -> str:
        return self.add("block", self.exactly(item, BLOCK))

    def text(self) -> str:
        """The grammar, root first, without names that were never defined."""
        order = sorted((name for name in self.bodies if self.bodies[name]), key=lambda name: name != "root")
        return "".join(f"{name} ::= {self.bodies[name]}\n" for name in order)
