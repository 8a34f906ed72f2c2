"""Reads GBNF into rules exactly as llama.cpp does, with its limits, and says where a text goes wrong.

llama.cpp's own parser prints its reason and the whole text on stderr, overflows the C stack on deep nesting,
takes `{5,2}` for an endless loop and `{0,3000}` for no limit. So no text reaches it that this one refuses.
Mirrors https://github.com/ggml-org/llama.cpp/blob/master/src/llama-grammar.cpp.
"""

import re
from dataclasses import dataclass, field

from llmrun.engine.gbnf import charset
from llmrun.engine.gbnf.charset import CharSet
from llmrun.errors import GrammarError

MAX_REPEAT = 2000
"""llama.cpp's MAX_REPETITION_THRESHOLD; a higher upper bound is silently no bound there."""
MAX_NESTING = 100
MAX_ELEMENTS = 500_000

_NAME = re.compile(r"[A-Za-z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_OR_NEWLINE = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_BOUNDS = re.compile(r"\{(?P<low>[0-9]+)(?P<comma>,(?P<high>[0-9]*))?\}")
_TOKEN = re.compile(r"!?<(\[[0-9]{1,10}\]|[^\[>][^>]*)>")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_ANY: CharSet = ((1, charset.LAST),)


@dataclass(frozen=True)
class TokenElement:
    """One whole token of the vocabulary, or any but that one; `text` as it stands in the grammar."""

    text: str


Element = CharSet | int | TokenElement
"""A character of a set, the index of a rule, or a token."""
Sequence = tuple[Element, ...]


@dataclass
class Grammar:
    """`rules[i]` holds the alternatives of rule i, `names[i]` its name (made up for groups and repetitions)."""

    names: list[str] = field(default_factory=list)
    rules: list[list[Sequence]] = field(default_factory=list)


def parse(text: str) -> Grammar:
    """The rules of a GBNF text. Raises GrammarError with line and column."""
    return _Parser(text).run()


def _count(digits: str) -> int:
    return int(digits) if len(digits) < 10 else MAX_REPEAT + 1


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.elements = 0
        self.grammar = Grammar()
        self.ids: dict[str, int] = {}
        self.defined: dict[str, int] = {}
        self.mentioned: dict[str, int] = {}

    def run(self) -> Grammar:
        self.skip(_SPACE_OR_NEWLINE)
        while self.at < len(self.text):
            self.rule()
        if not self.defined:
            raise GrammarError("the grammar has no rules", 'write at least one, as in  root ::= "yes" | "no"')
        for name, place in self.mentioned.items():
            if name not in self.defined:
                raise self.error(f"undefined rule '{name}'", place)
        if "root" not in self.defined:
            raise GrammarError("the grammar has no rule named 'root'", "the answer is what root matches")
        return self.grammar

    def error(self, reason: str, place: int | None = None) -> GrammarError:
        place = self.at if place is None else place
        line = self.text.count("\n", 0, place) + 1
        column = place - (self.text.rfind("\n", 0, place) + 1) + 1
        return GrammarError(
            f"grammar, line {line}, column {column}: {reason}",
            "GBNF is described in llama.cpp's grammars/README.md",
        )

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def space(self) -> None:
        self.skip(_SPACE_OR_NEWLINE if self.depth else _SPACE)

    def rule_id(self, name: str) -> int:
        if name not in self.ids:
            self.ids[name] = len(self.grammar.rules)
            self.grammar.names.append(name)
            self.grammar.rules.append([])
        return self.ids[name]

    def new_rule(self, base: str, alternatives: list[Sequence]) -> int:
        self.count(sum(len(a) + 1 for a in alternatives))
        number = self.rule_id(f"{base}_{len(self.grammar.rules)}")
        self.grammar.rules[number] = alternatives
        return number

    def count(self, elements: int) -> None:
        self.elements += elements
        if self.elements > MAX_ELEMENTS:
            raise self.error(f"the grammar grows past {MAX_ELEMENTS} elements here")

    def rule(self) -> None:
        start = self.at
        name = self.name()
        if name in self.defined:
            raise self.error(f"rule '{name}' is defined twice", start)
        self.defined[name] = start
        number = self.rule_id(name)
        self.space()
        if not self.text.startswith("::=", self.at):
            raise self.error("expected ::=")
        self.at += 3
        self.skip(_SPACE_OR_NEWLINE)
        alternatives = self.alternatives(name)
        self.count(sum(len(a) + 1 for a in alternatives))
        self.grammar.rules[number] = alternatives
        if self.peek() not in ("", "\r", "\n"):
            raise self.error(f"unexpected {self.peek()!r}")
        self.skip(_SPACE_OR_NEWLINE)

    def name(self) -> str:
        found = _NAME.match(self.text, self.at)
        if not found:
            raise self.error("expected a rule name (letters, digits and -)")
        self.at = found.end()
        return found.group()

    def alternatives(self, base: str) -> list[Sequence]:
        found = [self.sequence(base)]
        while self.peek() == "|":
            self.at += 1
            self.skip(_SPACE_OR_NEWLINE)
            found.append(self.sequence(base))
        return found

    def sequence(self, base: str) -> Sequence:
        elements: list[Element] = []
        last = 0
        weight = 1
        while char := self.peek():
            if char in "*+?{":
                low, high = self.bounds()
                times = high or low or 1
                if weight * times > MAX_REPEAT:
                    raise self.error(f"a repetition of more than {MAX_REPEAT} rules is not possible")
                self.repeat(base, elements, last, low, high)
                weight *= times
            else:
                before = len(self.grammar.rules)
                found = self.item(base)
                if found is None:
                    break
                last = len(elements)
                elements += found
                weight = max(1, len(self.grammar.rules) - before) if char == "(" else 1
            self.space()
        return tuple(elements)

    def item(self, base: str) -> list[Element] | None:
        """One literal, class, token, reference, group or `.`; None where the sequence ends."""
        char = self.peek()
        if char == '"':
            return self.literal()
        if char == "[":
            return [self.char_class()]
        if char in "<!":
            return [self.token()]
        if char == "(":
            return [self.group(base)]
        if char == ".":
            self.at += 1
            return [_ANY]
        if _NAME.match(char):
            start = self.at
            name = self.name()
            self.mentioned.setdefault(name, start)
            return [self.rule_id(name)]
        return None

    def literal(self) -> list[Element]:
        self.at += 1
        found: list[Element] = []
        while self.peek() != '"':
            start = self.at
            point = self.char()
            if not 0 < point <= charset.LAST:
                raise self.error("no text can hold this character", start)
            found.append(((point, point),))
        self.at += 1
        self.count(len(found))
        return found

    def char_class(self) -> CharSet:
        start = self.at
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        ranges = []
        while self.peek() != "]":
            low = high = self.char()
            if self.peek() == "-" and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.char()
            ranges.append((low, high))
        self.at += 1
        if not ranges:
            raise self.error("an empty character class", start)
        chars = charset.charset(ranges)
        chars = charset.complement(chars, _ANY) if negated else charset.intersection(chars, _ANY)
        if not chars:
            raise self.error("a character class that matches no character", start)
        return chars

    def char(self) -> int:
        char = self.peek()
        if not char:
            raise self.error("unexpected end: a literal or character class is not closed")
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.peek()
        self.at += 1
        if kind in _ESCAPES and kind:
            return ord(_ESCAPES[kind])
        digits = self.text[self.at : self.at + _HEX.get(kind, 0)]
        if len(digits) != _HEX.get(kind) or not re.fullmatch("[0-9A-Fa-f]+", digits):
            raise self.error(f"unknown escape \\{kind}{digits}", self.at - 2)
        self.at += len(digits)
        return int(digits, 16)

    def token(self) -> TokenElement:
        found = _TOKEN.match(self.text, self.at)
        if not found:
            raise self.error("expected a token, as <name> or <[id]>")
        self.at = found.end()
        return TokenElement(found.group())

    def group(self, base: str) -> int:
        if self.depth >= MAX_NESTING:
            raise self.error(f"groups nested more than {MAX_NESTING} deep")
        start = self.at
        self.at += 1
        self.depth += 1
        self.skip(_SPACE_OR_NEWLINE)
        number = self.new_rule(base, [])
        alternatives = self.alternatives(base)
        self.count(sum(len(a) + 1 for a in alternatives))
        self.grammar.rules[number] = alternatives
        if self.peek() != ")":
            raise self.error("this group is not closed", start)
        self.at += 1
        self.depth -= 1
        return number

    def bounds(self) -> tuple[int, int | None]:
        """What `*`, `+`, `?` or `{m,n}` allows; None for no upper bound."""
        char = self.peek()
        if char in "*+?":
            self.at += 1
            return (1 if char == "+" else 0), (1 if char == "?" else None)
        start = self.at
        inner = re.sub(r"\s|#.*", "", self.text[start : self.text.find("}", start) + 1])
        found = _BOUNDS.fullmatch(inner)
        if not found:
            raise self.error("expected a repetition, as {3}, {3,} or {3,5}")
        low = _count(found["low"])
        high = _count(found["high"]) if found["high"] else None if found["comma"] else low
        if max(low, high or 0) > MAX_REPEAT:
            raise self.error(f"a repetition of more than {MAX_REPEAT} is not possible; nest two, as (x{{100}}){{30}}")
        if high is not None and high < low:
            raise self.error(f"a repetition of at least {low} and at most {high}")
        self.at = self.text.find("}", start) + 1
        return low, high

    def repeat(self, base: str, elements: list[Element], last: int, low: int, high: int | None) -> None:
        """Rewrites the item from `last` on the way llama.cpp does: copies, then a chain of optional rules."""
        item = tuple(elements[last:])
        if not item:
            raise self.error("a repetition of nothing")
        self.count(len(item) * low)
        del elements[last:]
        elements.extend(item * low)
        if high is None:
            number = self.new_rule(base, [])
            self.grammar.rules[number] = [(*item, number), ()]
            elements.append(number)
            return
        tail: tuple[Element, ...] = ()
        for _ in range(high - low):
            tail = (self.new_rule(base, [(*item, *tail), ()]),)
        elements.extend(tail)
