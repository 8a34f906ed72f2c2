"""Regular expressions, in the part that ECMA-262 and Python read alike, as machines over characters.

`pattern` finds its match anywhere, as JSON Schema has it; `^` and `$` hold wherever they stand. Where the two
dialects differ in what a class matches (`\\w` and letters beyond ASCII), only what both match is produced.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from llmrun.engine.gbnf.automaton import State
from llmrun.engine.gbnf.charset import EVERY, LAST, CharSet, charset, complement, intersection, of, union

MAX_NODES = 20_000
MAX_WORK = 2_000_000
MAX_NESTING = 50


class PatternError(Exception):
    """Why a pattern cannot be used."""


@dataclass(frozen=True)
class _Class:
    """A class of characters: those that surely match, and those that match in one of the dialects."""

    sure: CharSet
    maybe: CharSet

    def negated(self) -> "_Class":
        return _Class(complement(self.maybe), complement(self.sure))


_BEYOND_ASCII: CharSet = ((0x80, LAST),)
_DIGIT = of("0123456789")
_WORD = union(_DIGIT, ((0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)))
_SPACE = union(of(" \t\n\v\f\r\xa0\u1680\u2028\u2029\u202f\u205f\u3000"), ((0x2000, 0x200A),))
_CLASSES = {
    "d": _Class(_DIGIT, union(_DIGIT, ((0x660, LAST),))),  # the next digits after ASCII's
    "w": _Class(_WORD, union(_WORD, _BEYOND_ASCII)),
    "s": _Class(_SPACE, union(_SPACE, of("\x85\ufeff"), ((0x1C, 0x1F),))),
}
_CLASSES |= {name.upper(): chars.negated() for name, chars in _CLASSES.items()}
_DOT = complement(of("\n\r\u2028\u2029"))
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_HEX = {"x": 2, "u": 4}
_QUANTIFIER = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<low>[0-9]+)(?P<comma>,(?P<high>[0-9]*))?\})\??")
_GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z_][A-Za-z0-9_]*>|(?!\?))")


@dataclass
class Pattern:
    """A pattern's nondeterministic automaton, run on sets of its nodes: the even ones of 2n and 2n+1 are n before
    any `$` was passed, the odd ones n after one, where no character may follow."""

    source: str
    chars: list[list[tuple[CharSet, int]]] = field(default_factory=list)
    jumps: list[list[tuple[str, int]]] = field(default_factory=list)
    work: int = 0

    def __post_init__(self) -> None:
        before, self.done = self.node(), self.node()
        self.chars[self.done].append((EVERY, self.done))
        first, last = _Reader(self).read()
        if any(self.chars[item // 2] or item // 2 == last for item in self.closure({2 * first})):
            self.chars[before].append((EVERY, before))  # it can begin later than at the start
        self.jump(before, first)
        self.jump(last, self.done)
        self.start: State = self.closure({2 * before}, at_start=True)

    def node(self) -> int:
        self.chars.append([])
        self.jumps.append([])
        if len(self.chars) > MAX_NODES:
            raise PatternError(f"its repetitions come to more than {MAX_NODES} characters")
        return len(self.chars) - 1

    def jump(self, source: int, target: int, kind: str = "") -> None:
        self.jumps[source].append((kind, target))

    def closure(self, nodes: set[int], at_start: bool = False) -> frozenset[int]:
        seen = set(nodes)
        todo = list(nodes)
        while todo:
            item = todo.pop()
            for kind, target in self.jumps[item // 2]:
                if kind == "^" and not at_start:
                    continue
                after = 2 * target + (1 if kind == "$" else item % 2)
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        self.work += len(seen)
        if self.work > MAX_WORK:
            raise PatternError("it is too involved")
        return frozenset([2 * self.done]) if 2 * self.done in seen else frozenset(seen)

    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]:
        assert isinstance(state, frozenset)
        ways = [way for item in state if item % 2 == 0 for way in self.chars[item // 2]]
        borders = sorted({p for chars, _ in ways for low, high in chars for p in (low, high + 1)})
        targets: dict[frozenset[int], list[tuple[int, int]]] = {}
        for low, end in pairwise(borders):
            found = frozenset(2 * t for chars, t in ways if any(a <= low <= b for a, b in chars))
            if found:
                targets.setdefault(found, []).append((low, end - 1))
        return [(charset(ranges), self.closure(set(found))) for found, ranges in targets.items()]

    def accepts(self, state: State) -> bool:
        return isinstance(state, frozenset) and (2 * self.done in state or 2 * self.done + 1 in state)


class _Reader:
    """Reads a pattern into the nodes of its automaton; a part is a pair of nodes, its first and its last."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.source = pattern.source
        self.at = 0
        self.depth = 0

    def read(self) -> tuple[int, int]:
        part = self.choice()
        if self.at < len(self.source):
            raise PatternError(f"unexpected {self.source[self.at]!r} at character {self.at + 1}")
        return part

    def peek(self, text: str = "") -> str:
        """The next character, or `text` if the source goes on with it; else nothing."""
        if text:
            return text if self.source.startswith(text, self.at) else ""
        return self.source[self.at : self.at + 1]

    def take(self, text: str) -> bool:
        found = bool(self.peek(text))
        self.at += len(text) * found
        return found

    def choice(self) -> tuple[int, int]:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        first, last = self.pattern.node(), self.pattern.node()
        for start, end in parts:
            self.pattern.jump(first, start)
            self.pattern.jump(end, last)
        return first, last

    def sequence(self) -> tuple[int, int]:
        first = last = self.pattern.node()
        while self.peek() not in ("", "|", ")"):
            start, end = self.repeated()
            self.pattern.jump(last, start)
            last = end
        return first, last

    def repeated(self) -> tuple[int, int]:
        place = self.at
        part = self.atom()
        low, high = self.bounds()
        if (low, high) == (1, 1):
            return part
        if self.source[place] in "^$":
            raise PatternError(f"a repeated {self.source[place]}")
        end = self.at
        first = at = self.pattern.node()
        last = self.pattern.node()
        for count in range(max(low, 1) if high is None else high):
            if count:  # another copy: the same text is read again
                self.at = place
                part = self.atom()
            if count >= low:
                self.pattern.jump(at, last)
            self.pattern.jump(at, part[0])
            at = part[1]
        if high is None:
            self.pattern.jump(part[1], part[0])
        self.pattern.jump(at, last)
        self.at = end
        return first, last

    def bounds(self) -> tuple[int, int | None]:
        """What the quantifier here allows; once where there is none. A lazy one matches the same texts."""
        found = _QUANTIFIER.match(self.source, self.at)
        if not found:
            return 1, 1
        self.at = found.end()
        if _QUANTIFIER.match(self.source, self.at) or self.peek("+"):
            raise PatternError(f"a quantifier on a quantifier at character {self.at + 1}")
        if found["sign"]:
            return (1 if found["sign"] == "+" else 0), (1 if found["sign"] == "?" else None)
        low = int(found["low"][:9])
        high = int(found["high"][:9]) if found["high"] else None if found["comma"] else low
        if high is not None and high < low:
            raise PatternError(f"a repetition of at least {low} and at most {high}")
        return low, high

    def atom(self) -> tuple[int, int]:
        char = self.peek()
        if char == "(":
            return self.group()
        self.at += 1
        if char in "^$":
            first, last = self.pattern.node(), self.pattern.node()
            self.pattern.jump(first, last, char)
            return first, last
        if char in "*+?":
            raise PatternError(f"a quantifier with nothing before it at character {self.at}")
        if char == "{" and _QUANTIFIER.match(self.source, self.at - 1):
            raise PatternError(f"a quantifier with nothing before it at character {self.at}")
        if self.source.startswith("{,", self.at - 1):
            raise PatternError("{,n} has no common meaning; write {0,n}")
        if char == "\\":
            return self.matched(self.escape().sure)
        if char == "[":
            return self.matched(self.char_class())
        return self.matched(_DOT if char == "." else of(char))

    def matched(self, chars: CharSet) -> tuple[int, int]:
        first, last = self.pattern.node(), self.pattern.node()
        self.pattern.chars[first].append((intersection(chars, EVERY), last))
        return first, last

    def group(self) -> tuple[int, int]:
        found = _GROUP.match(self.source, self.at)
        if not found:
            raise PatternError(f"look-around or flags: '{self.source[self.at : self.at + 3]}'")
        self.at = found.end()
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise PatternError(f"groups nested more than {MAX_NESTING} deep")
        part = self.choice()
        self.depth -= 1
        if not self.take(")"):
            raise PatternError("a group that is not closed")
        return part

    def escape(self, in_class: bool = False) -> _Class:
        """The class that stands after a backslash, which may be of one character."""
        kind = self.peek()
        self.at += 1
        if kind in _CLASSES:
            return _CLASSES[kind]
        if kind in _HEX:
            digits = self.source[self.at : self.at + _HEX[kind]]
            if len(digits) < _HEX[kind] or any(d not in "0123456789abcdefABCDEF" for d in digits):
                raise PatternError(f"the escape \\{kind}{digits}")
            self.at += len(digits)
            return self.single(chr(int(digits, 16)))
        if kind in _CONTROLS:
            return self.single(_CONTROLS[kind])
        if kind == "b" and in_class:
            return self.single("\b")
        if not kind or kind.isalnum() or not kind.isascii():
            names = {"b": "the word boundary \\b", "B": "the word boundary \\B", "k": "a back-reference"}
            raise PatternError("a back-reference" if kind.isdigit() else names.get(kind, f"the escape \\{kind}"))
        return self.single(kind)

    def single(self, char: str) -> _Class:
        return _Class(of(char), of(char))

    def char_class(self) -> CharSet:
        negated = self.take("^")
        if self.peek("]"):
            raise PatternError("an empty character class")
        parts = []
        while not self.take("]"):
            part = self.class_item()
            if self.peek("-") and not self.peek("-]"):
                self.at += 1
                part = self.range(part, self.class_item())
            parts.append(part)
        whole = _Class(union(*(p.sure for p in parts)), union(*(p.maybe for p in parts)))
        return (whole.negated() if negated else whole).sure

    def class_item(self) -> _Class:
        char = self.peek()
        if not char:
            raise PatternError("a character class that is not closed")
        self.at += 1
        return self.escape(in_class=True) if char == "\\" else self.single(char)

    def range(self, low: _Class, high: _Class) -> _Class:
        ends = [chars.sure[0][0] for chars in (low, high) if chars.sure == chars.maybe and len(chars.sure) == 1]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise PatternError(f"a range without an order before character {self.at + 1}")
        span: CharSet = ((ends[0], ends[1]),)
        return _Class(span, span)
