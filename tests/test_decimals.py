"""Numbers within bounds as automata, against plain arithmetic."""

from fractions import Fraction
from random import Random

import pytest

from llmrun.engine.gbnf.automaton import accepts, explore
from llmrun.engine.gbnf.decimals import Decimals, Interval
from tests.derivation import accepted


def random_interval(random: Random) -> Interval:
    ends = sorted(Fraction(random.randint(-2000, 2000), random.choice([1, 1, 2, 10, 100])) for _ in range(2))
    low = ends[0] if random.random() < 0.8 else None
    high = ends[1] if random.random() < 0.8 else None
    return Interval(low, high, random.random() < 0.5, random.random() < 0.5)


@pytest.mark.parametrize("places", [0, 1, 3])
def test_random_intervals_accept_their_numbers_and_no_others(places: int) -> None:
    random = Random(places)
    for _ in range(60):
        interval = random_interval(random)
        step = random.choice(
            [None, None, None, Fraction(1), Fraction(7), Fraction(10), Fraction(1, 2), Fraction(3, 4)]
        )
        shown = places if step is None else step.denominator.bit_length() - 1
        machine = explore(Decimals(interval, 8, shown, step))
        ends = [end for end in (interval.low, interval.high) if end is not None] or [Fraction(0)]
        for _ in range(50):
            near = random.choice(ends) + Fraction(random.choice([0, 0, 100, -100, 50, -10, 1]), 100)
            value = random.choice([near, Fraction(random.randint(-3000, 3000), 4)])
            written = f"{float(value):.{random.randint(0, shown)}f}" if shown else str(round(value))
            number = Fraction(written)
            if written.startswith("-") and number == 0:
                assert machine is None or not accepted(machine, written)
                continue
            expected = interval.holds(number) and (step is None or number % step == 0)
            assert (machine is not None and accepted(machine, written)) == expected, (interval, step, written)


@pytest.mark.parametrize("text", ["", "-", "01", "-0", "-0.0", "1.", ".5", "+1", "1e2", "--1", "1.5.2", "123456789"])
def test_other_ways_to_write_a_number_are_not_accepted(text: str) -> None:
    assert not accepts(Decimals(Interval(), 8, 3), text)


def test_digits_and_places_are_bounded() -> None:
    machine = Decimals(Interval(Fraction(-5)), 6, 4)
    found = {text: accepts(machine, text) for text in ("999999", "9999999", "1.2345", "1.23456", "12345.6")}
    assert [text for text, fits in found.items() if fits] == ["999999", "1.2345", "12345.6"]


def test_intervals() -> None:
    zero, ten = Fraction(0), Fraction(10)
    closed = Interval(zero, ten)
    assert closed.common(Interval(zero, ten, True, True)) == Interval(zero, ten, True, True)
    assert closed.common(Interval(low=ten)) == Interval(ten, ten)
    assert Interval(ten, ten, True).empty() and not Interval(ten, ten).empty() and Interval(ten, zero).empty()
    assert closed.meets(zero, ten) is True
    assert closed.meets(ten, Fraction(11)) is None
    assert closed.meets(Fraction(-5), zero) is False
    assert Interval(zero, ten, True).meets(zero, Fraction(1)) is None
