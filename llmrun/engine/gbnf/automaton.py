"""Deterministic automata over characters: given as a machine, explored state by state, written as rules.

One rule per state leaves llama.cpp exactly one stack to follow, however involved the language is.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

from llmrun.engine.gbnf.charset import EVERY, CharSet, complement, contains, intersection, union
from llmrun.engine.gbnf.writer import Rules

MAX_EXPLORED = 30_000
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
class Length:
    """Texts of `low` to `high` characters; high None: of any length from low."""

    low: int
    high: int | None
    start: int = 0

    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]:
        assert isinstance(state, int)
        if self.high is None:
            return [(EVERY, min(state + 1, self.low))]
        return [(EVERY, state + 1)] if state < self.high else []

    def accepts(self, state: State) -> bool:
        return isinstance(state, int) and state >= self.low


@dataclass(frozen=True)
class Words:
    """Just these texts, or all others."""

    words: frozenset[str]
    listed: bool = True
    start: str = ""

    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]:
        if state is None:
            return [(EVERY, None)]
        assert isinstance(state, str)
        depth = len(state)
        nexts = {w[depth] for w in self.words if len(w) > depth and w.startswith(state)}
        found: list[tuple[CharSet, State]] = [(((ord(c), ord(c)),), state + c) for c in sorted(nexts)]
        others = complement(union(*(chars for chars, _ in found))) if found else EVERY
        return found if self.listed else [*found, (others, None)]

    def accepts(self, state: State) -> bool:
        return (state in self.words) == self.listed


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


def accepts(machine: Machine, text: str) -> bool:
    """Whether the machine accepts the text."""
    state = machine.start
    for char in text:
        ways = (after for chars, after in machine.moves(state) if contains(chars, ord(char)))
        found = next(ways, machine)
        if found is machine:
            return False
        state = found
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
    # States from which no cycle is reached, each after all it leads to: equal ones become one.
    waiting = [len(targets) for targets in edges]
    ends = [state for state in living if waiting[state] == 0]
    same = list(range(len(edges)))
    kept: dict[Hashable, int] = {}
    for state in ends:
        edges[state] = _redirect(edges[state], same)
        same[state] = kept.setdefault((accepting[state], frozenset(edges[state].items())), state)
        for source in sources[state]:
            waiting[source] -= 1
            if waiting[source] == 0 and source in living:
                ends.append(source)
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
        parts = []
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
