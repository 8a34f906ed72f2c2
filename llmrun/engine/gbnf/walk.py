"""Follows a grammar character by character with a set of stacks, as llama.cpp does while it samples.

What this finds costly is costly there: its limits are how a grammar that would eat all time or memory is found out.
"""

from llmrun.engine.gbnf.charset import contains
from llmrun.engine.gbnf.parser import Grammar, TokenElement

MAX_STACKS = 5000
"""One token of a 50k vocabulary then takes some 4 s."""
MAX_WORK = 300_000
"""Per character: for each stack the square of the stacks it becomes, since llama.cpp compares each with each.
`("a"?){60}` is 70,000 and takes 0.3 s for a token, `("a"?){100}` is 330,000 and takes 2 s, `{200}` 71 s."""

Stack = tuple[tuple[int, int], ...]
"""Places in alternatives still to be matched, the next one last: (number of the alternative, position)."""


class TooManyStacks(Exception):
    """The grammar can be read in too many ways at one point."""


class Walk:
    """All ways to read a text by a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self.alternatives = [sequence for rule in grammar.rules for sequence in rule]
        starts = [0]
        for rule in grammar.rules:
            starts.append(starts[-1] + len(rule))
        self.choices = [range(a, b) for a, b in zip(starts, starts[1:], strict=False)]
        root = grammar.names.index("root")
        self.start = self.expand({((n, 0),) if self.alternatives[n] else () for n in self.choices[root]})

    def expand(self, stacks: set[Stack]) -> set[Stack]:
        """The stacks with every rule reference at their top replaced, until each begins with a terminal."""
        todo = list(stacks)
        seen = set(todo)
        ready: set[Stack] = set()
        while todo:
            stack = todo.pop()
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

    def advance(self, stacks: set[Stack], point: int) -> set[Stack]:
        """The stacks after one more character; empty where the grammar does not allow it."""
        found: set[Stack] = set()
        work = 0
        for stack in stacks:
            if stack and self.matches(stack, point):
                ready = self.expand({self.after(stack)})
                found |= ready
                work += len(ready) ** 2
                if work > MAX_WORK or len(found) > MAX_STACKS:
                    raise TooManyStacks
        return found

    def matches(self, stack: Stack, point: int) -> bool:
        number, position = stack[-1]
        element = self.alternatives[number][position]
        return not isinstance(element, int | TokenElement) and contains(element, point)

    def tops(self, stacks: set[Stack]) -> list[int]:
        """One character for each range that the grammar allows next."""
        found: dict[int, None] = {}
        for stack in sorted(stacks):
            if stack:
                element = self.alternatives[stack[-1][0]][stack[-1][1]]
                if not isinstance(element, int | TokenElement):
                    found.update((low, None) for low, _ in element)
        return list(found)

    def accepts(self, text: str) -> bool:
        """Whether the whole text is an answer by this grammar."""
        stacks = self.start
        for char in text:
            stacks = self.advance(stacks, ord(char))
        return () in stacks
