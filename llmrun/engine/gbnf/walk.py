"""Follows a grammar character by character with a set of stacks, as llama.cpp does while it samples.

What this finds costly is costly there: its limits are how a grammar that would eat all time or memory is found out.
"""

from collections.abc import Iterable
from itertools import pairwise

from llmrun.engine.gbnf.charset import contains
from llmrun.engine.gbnf.parser import Grammar, TokenElement

MAX_STACKS = 2000
"""One token of a 50k vocabulary then takes some 1.4 s."""
MAX_WORK = 300_000
"""Per character: for each stack the square of the stacks it becomes, since llama.cpp compares each with each.
`("a"?){60}` is 70,000 and takes 0.3 s for a token, `("a"?){100}` is 330,000 and takes 2 s, `{200}` 71 s."""

MAX_PATHS = 100_000
"""A token that fits nowhere is tried by every path, and paths that meet in one stack are not joined."""
TOKEN_CHARS = 12

Stack = tuple[tuple[int, int], ...]
"""Places in alternatives still to be matched, the next one last: (number of the alternative, position)."""
Stacks = dict[Stack, int]
"""The stacks at one point of a text, each with the number of paths that led to it."""


class TooManyStacks(Exception):
    """The grammar can be read in too many ways at one point."""


class Walk:
    """All ways to read a text by a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self.alternatives = [sequence for rule in grammar.rules for sequence in rule]
        starts = [0]
        for rule in grammar.rules:
            starts.append(starts[-1] + len(rule))
        self.choices = [range(a, b) for a, b in pairwise(starts)]
        self.looked = 0
        root = grammar.names.index("root")
        first = {((n, 0),) if self.alternatives[n] else () for n in self.choices[root]}
        self.start: Stacks = dict.fromkeys(self.expand(first), 1)

    def expand(self, stacks: Iterable[Stack]) -> set[Stack]:
        """The stacks with every rule reference at their top replaced, until each begins with a terminal."""
        todo = list(stacks)
        seen = set(todo)
        ready: set[Stack] = set()
        while todo:
            stack = todo.pop()
            self.looked += 1
            if len(seen) > MAX_STACKS:
                raise TooManyStacks
            if not stack:
                ready.add(stack)
                continue
            number, position = stack[-1]
            element = self.alternatives[number][position]
            if not isinstance(element, int):
                ready.add(stack)
                continue
            rest = self.after(stack)
            for choice in self.choices[element]:
                longer = (*rest, (choice, 0)) if self.alternatives[choice] else rest
                if longer not in seen:
                    seen.add(longer)
                    todo.append(longer)
        return ready

    def after(self, stack: Stack) -> Stack:
        """The stack with its top element done."""
        number, position = stack[-1]
        if position + 1 < len(self.alternatives[number]):
            return (*stack[:-1], (number, position + 1))
        return stack[:-1]

    def advance(self, stacks: Stacks, point: int) -> Stacks:
        """The stacks after one more character; empty where the grammar does not allow it."""
        found: Stacks = {}
        work = 0
        for stack, paths in stacks.items():
            if self.matches(stack, point):
                ready = self.expand([self.after(stack)])
                for longer in ready:
                    found[longer] = found.get(longer, 0) + paths
                work += len(ready) ** 2
                if work > MAX_WORK or len(found) > MAX_STACKS:
                    raise TooManyStacks
        return found

    def matches(self, stack: Stack, point: int) -> bool:
        """Whether the character may be the next one by this stack."""
        if not stack:
            return False
        number, position = stack[-1]
        element = self.alternatives[number][position]
        return not isinstance(element, int | TokenElement) and contains(element, point)

    def tops(self, stacks: Stacks) -> list[int]:
        """One character for each range that the grammar allows next."""
        found: dict[int, None] = {}
        for stack in stacks:
            if stack:
                element = self.alternatives[stack[-1][0]][stack[-1][1]]
                if not isinstance(element, int | TokenElement):
                    found.update((low, None) for low, _ in element)
        return list(found)

    def heaviest(self, stacks: Stacks, points: list[int]) -> Stacks:
        """The stacks after the character that promises to lead furthest: by how many stacks match it, not into white
        space, how deep and how many they are after it."""
        self.looked += len(stacks) * len(points) // 4
        counts = [(sum(self.matches(stack, point) for stack in stacks), point > 0x20, point) for point in points]
        best = max(counts)[:2]
        tied = [point for *count, point in counts if tuple(count) == best]
        ways = [self.advance(stacks, point) for point in tied[:4]]
        return max(ways, key=lambda after: (max(map(len, after)), len(after)))

    def accepts(self, text: str) -> bool:
        """Whether the whole text is an answer by this grammar."""
        stacks = self.start
        for char in text:
            stacks = self.advance(stacks, ord(char))
        return () in stacks
