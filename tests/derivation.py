"""Random texts of a grammar, drawn rule by rule, and a run of an automaton."""

from random import Random

from llmrun.engine.gbnf.automaton import Automaton
from llmrun.engine.gbnf.parser import Grammar, Sequence, TokenElement, parse


def accepted(automaton: Automaton, text: str) -> bool:
    """Whether an explored automaton accepts a text."""
    state = 0
    for char in text:
        ways = automaton.edges[state].items()
        found = [target for target, chars in ways if any(low <= ord(char) <= high for low, high in chars)]
        if not found:
            return False
        (state,) = found
    return automaton.accepting[state]


class Derivation:
    """Draws texts; past `room` rules it takes the shortest way to an end."""

    def __init__(self, text: str, random: Random) -> None:
        self.grammar: Grammar = parse(text)
        self.random = random
        self.costs = self.shortest()

    def shortest(self) -> list[float]:
        """For each rule the least number of rules it takes to an end."""
        costs = [float("inf")] * len(self.grammar.rules)
        growing = True
        while growing:
            growing = False
            for number, rule in enumerate(self.grammar.rules):
                least = 1 + min(self.cost(sequence, costs) for sequence in rule)
                if least < costs[number]:
                    costs[number] = least
                    growing = True
        return costs

    def cost(self, sequence: Sequence, costs: list[float]) -> float:
        return sum(costs[element] for element in sequence if isinstance(element, int))

    def draw(self, room: int) -> str:
        """One text. Raises OverflowError where it does not end."""
        found = []
        stack: list[object] = [self.grammar.names.index("root")]
        steps = 0
        while stack:
            element = stack.pop()
            if isinstance(element, int):
                steps += 1
                if steps > 100_000:
                    raise OverflowError
                rule = self.grammar.rules[element]
                sequence = self.random.choice(rule)
                if steps > room or self.cost(sequence, self.costs) == float("inf"):
                    sequence = min(rule, key=lambda s: self.cost(s, self.costs))
                stack.extend(reversed(sequence))
            else:
                assert not isinstance(element, TokenElement)
                found.append(self.char(element))
        return "".join(found)

    def char(self, chars: object) -> str:
        assert isinstance(chars, tuple)
        low, high = self.random.choice(chars)
        return chr(self.random.choice([low, high, self.random.randint(low, high)]))
