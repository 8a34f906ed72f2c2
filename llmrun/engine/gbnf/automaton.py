"""Deterministic automata over characters: given as a machine, explored state by state, written as rules.

One rule per state leaves llama.cpp exactly one stack to follow, however involved the language is.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

from llmrun.engine.gbnf.charset import EVERY, CharSet, complement, contains, intersection, union
from llmrun.engine.gbnf.writer import Rules

MAX_EXPLORED = 20_000
MAX_STATES = 6000

State = Hashable


class TooManyStates(Exception):
    """The language needs more states than a grammar should have."""


class Machine(Protocol):
    """A deterministic automaton whose states are made as they are reached; the sets of one state are disjoint."""

    @property
    def start(self) -> State: ...
    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]: ...
    def accepts(self, state: State) -> bool: ...


@dataclass(frozen=True)
class Others:
    """All texts but these words."""

    words: frozenset[str]
    start: str = ""

    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]:
        if state is None:
            return [(EVERY, None)]
        assert isinstance(state, str)
        depth = len(state)
        nexts = {word[depth] for word in self.words if len(word) > depth and word.startswith(state)}
        found: list[tuple[CharSet, State]] = [(((ord(c), ord(c)),), state + c) for c in sorted(nexts)]
        return [*found, (complement(union(*(chars for chars, _ in found))), None)]

    def accepts(self, state: State) -> bool:
        return state not in self.words


@dataclass(frozen=True)
class Both:
    """Texts that two machines accept."""

    left: Machine
    right: Machine

    @property
    def start(self) -> State:
        return (self.left.start, self.right.start)

    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]:
        assert isinstance(state, tuple)
        others = list(self.right.moves(state[1]))
        for chars, left in self.left.moves(state[0]):
            for more, right in others:
                common = intersection(chars, more)
                if common:
                    yield common, (left, right)

    def accepts(self, state: State) -> bool:
        assert isinstance(state, tuple)
        return self.left.accepts(state[0]) and self.right.accepts(state[1])


@dataclass(frozen=True)
class Automaton:
    """`edges[i]` maps the states after state i to the characters that lead there; it starts in state 0."""

    edges: list[dict[int, CharSet]]
    accepting: list[bool]


def repetition(automaton: Automaton) -> tuple[CharSet, int, int | None] | None:
    """The set and the bounds where the automaton accepts so many characters of one set; None where it does not."""
    if len(automaton.edges[0]) != 1:
        return None
    ((_, chars),) = automaton.edges[0].items()
    low = 0
    for state, targets in enumerate(automaton.edges):
        low += not automaton.accepting[state]
        if targets == {state: chars}:
            return (chars, low, None) if state + 1 == len(automaton.edges) and automaton.accepting[state] else None
        if not targets:
            return chars, low, state
        if targets != {state + 1: chars} or (automaton.accepting[state] and not automaton.accepting[state + 1]):
            return None
    return None


class Measured:
    """Texts of an automaton with `low` to `high` characters; high None: of low or more.

    A state is one of the automaton's with the characters so far, or None once neither bound can be broken any more.
    """

    def __init__(self, automaton: Automaton, low: int, high: int | None) -> None:
        self.automaton = automaton
        self.low = low
        self.high = math.inf if high is None else high
        self.shortest, self.longest = _distances(automaton)
        self.start: State = self.settle(0, 0)

    def settle(self, state: int, count: int) -> tuple[int, int | None]:
        fits = count + self.shortest[state] >= self.low and count + self.longest[state] <= self.high
        return state, (None if fits else min(count, self.low) if self.high == math.inf else count)

    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]:
        assert isinstance(state, tuple)
        place, count = state
        for target, chars in self.automaton.edges[place].items():
            if count is None:
                yield chars, (target, None)
            elif count + 1 + self.shortest[target] <= self.high:
                yield chars, self.settle(target, count + 1)

    def accepts(self, state: State) -> bool:
        assert isinstance(state, tuple)
        place, count = state
        return self.automaton.accepting[place] and (count is None or self.low <= count <= self.high)


def _distances(automaton: Automaton) -> tuple[list[float], list[float]]:
    """For each state the characters of the shortest and of the longest way to an end."""
    sources = _sources(automaton.edges)
    shortest = [0.0 if accepts else math.inf for accepts in automaton.accepting]
    todo = [state for state, accepts in enumerate(automaton.accepting) if accepts]
    for state in todo:
        for source in sources[state]:
            if shortest[source] == math.inf:
                shortest[source] = shortest[state] + 1
                todo.append(source)
    longest = [math.inf] * len(sources)
    for state in _ends_first(automaton.edges):
        longest[state] = max((longest[target] + 1 for target in automaton.edges[state]), default=0)
    return shortest, longest


def _ends_first(edges: list[dict[int, CharSet]]) -> list[int]:
    """The states from which no cycle is reached, each after all it leads to."""
    sources = _sources(edges)
    waiting = [len(targets) for targets in edges]
    order = [state for state, count in enumerate(waiting) if count == 0]
    for state in order:
        for source in sources[state]:
            waiting[source] -= 1
            if waiting[source] == 0:
                order.append(source)
    return order


def accepts(machine: Machine, text: str) -> bool:
    """Whether the machine accepts the text."""
    state = machine.start
    for char in text:
        ways = [after for chars, after in machine.moves(state) if contains(chars, ord(char))]
        if not ways:
            return False
        state = ways[0]
    return machine.accepts(state)


def explore(machine: Machine) -> Automaton | None:
    """The machine's states that lie on a way to acceptance, equal ends merged. None: it accepts nothing.

    Raises TooManyStates.
    """
    numbers: dict[State, int] = {machine.start: 0}
    order: list[State] = [machine.start]
    edges: list[dict[int, CharSet]] = []
    for state in order:
        targets: dict[int, list[CharSet]] = {}
        for chars, after in machine.moves(state):
            if after not in numbers:
                numbers[after] = len(order)
                order.append(after)
            targets.setdefault(numbers[after], []).append(chars)
        edges.append({target: union(*sets) for target, sets in targets.items()})
        if len(order) > MAX_EXPLORED:
            raise TooManyStates
    return _merge(edges, [machine.accepts(state) for state in order])


def _sources(edges: list[dict[int, CharSet]]) -> list[list[int]]:
    sources: list[list[int]] = [[] for _ in edges]
    for state, targets in enumerate(edges):
        for target in targets:
            sources[target].append(state)
    return sources


def _merge(edges: list[dict[int, CharSet]], accepting: list[bool]) -> Automaton | None:
    sources = _sources(edges)
    alive = [state for state, accepts in enumerate(accepting) if accepts]
    living = set(alive)
    for state in alive:
        new = [source for source in sources[state] if source not in living]
        living.update(new)
        alive.extend(new)
    if 0 not in living:
        return None
    edges = [{t: chars for t, chars in targets.items() if t in living} for targets in edges]
    # Equal ends become one.
    same = list(range(len(edges)))
    kept: dict[Hashable, int] = {}
    for state in _ends_first(edges):
        if state in living:
            edges[state] = _redirect(edges[state], same)
            same[state] = kept.setdefault((accepting[state], frozenset(edges[state].items())), state)
    return _renumber([_redirect(targets, same) for targets in edges], accepting, same[0])


def _redirect(targets: dict[int, CharSet], same: list[int]) -> dict[int, CharSet]:
    found: dict[int, CharSet] = {}
    for target, chars in targets.items():
        found[same[target]] = union(found.get(same[target], ()), chars)
    return found


def _renumber(edges: list[dict[int, CharSet]], accepting: list[bool], start: int) -> Automaton:
    numbers = {start: 0}
    order = [start]
    for state in order:
        for target in edges[state]:
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
    if len(order) > MAX_STATES:
        raise TooManyStates
    return Automaton(
        [{numbers[t]: chars for t, chars in edges[state].items()} for state in order],
        [accepting[state] for state in order],
    )


def write(automaton: Automaton, rules: Rules, hint: str, char: Callable[[CharSet], str], end: str) -> str:
    """A GBNF expression for the automaton; `char` writes one character of a set, `end` follows the last one."""
    uses = [0] * len(automaton.edges)
    for targets in automaton.edges:
        for target in targets:
            uses[target] += 1
    names: dict[int, str] = {0: rules.reserve(hint)}

    def chain(state: int) -> str:
        """What follows on the way into `state`: its own text where nothing else leads there and it has one way on."""
        parts: list[str] = []
        while True:
            targets, accepts = automaton.edges[state], automaton.accepting[state]
            if accepts and not targets:
                return " ".join([*parts, end])
            if uses[state] > 1 or accepts or len(targets) > 1 or state == 0:
                if state not in names:
                    names[state] = rules.reserve(hint)
                    todo.append(state)
                return " ".join([*parts, names[state]])
            ((state, chars),) = targets.items()
            parts.append(char(chars))

    todo = [0]
    for state in todo:
        ways = [f"{char(chars)} {chain(target)}" for target, chars in automaton.edges[state].items()]
        if automaton.accepting[state]:
            ways.append(end)
        rules.define(names[state], " | ".join(way.strip() for way in ways))
    return names[0]
