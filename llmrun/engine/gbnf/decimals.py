"""Decimal numbers within bounds, as a machine over their digits: no exponent, no leading zeros, no minus zero.

A prefix is kept as a number only while a bound can still cut through what may follow it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from llmrun.engine.gbnf.automaton import State
from llmrun.engine.gbnf.charset import CharSet, of

FLOAT_DIGITS = 15
"""As many decimal digits survive the way through a double, so distinct texts stay distinct numbers."""


@dataclass(frozen=True)
class Interval:
    """From low to high, without the end where open; None: unbounded."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False

    def holds(self, value: Fraction) -> bool:
        above = self.low is None or value > self.low or (value == self.low and not self.low_open)
        below = self.high is None or value < self.high or (value == self.high and not self.high_open)
        return above and below

    def meets(self, start: Fraction, end: Fraction) -> bool | None:
        """Whether all (True), none (False) or some (None) of start <= x < end lie within."""
        if (self.low is not None and end <= self.low) or (
            self.high is not None and (start > self.high or (start == self.high and self.high_open))
        ):
            return False
        whole = (self.low is None or start > self.low or (start == self.low and not self.low_open)) and (
            self.high is None or end <= self.high
        )
        return True if whole else None

    def mirrored(self) -> "Interval":
        """The magnitudes of the negative numbers within, zero left out."""
        low = Fraction(0) if self.high is None or self.high >= 0 else -self.high
        high = None if self.low is None else -self.low
        return Interval(low, high, low == 0 or self.high_open, self.low_open)

    def empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))

    def common(self, other: "Interval") -> "Interval":
        lows = [(i.low, i.low_open) for i in (self, other) if i.low is not None]
        highs = [(i.high, not i.high_open) for i in (self, other) if i.high is not None]
        low = max(lows, default=(None, False))
        high = min(highs, default=(None, True))
        return Interval(low[0], high[0], low[1], not high[1])


class _Exact(NamedTuple):
    """A prefix that a bound may still cut off: its digits as one integer, `places` of them after the point."""

    negative: bool
    value: int
    digits: int
    places: int | None


class _Free(NamedTuple):
    """A prefix after which the bounds are decided: whether it is a multiple of the step so far, ten times its
    remainder by the step (more no digit that follows depends on), and whether n more digits before the point fit."""

    multiple: bool
    tens: int
    digits: int
    places: int | None
    fits: tuple[bool | None, ...]


@dataclass(frozen=True)
class Decimals:
    """Numbers of an interval with at most `max_digits` digits, `max_places` of them after the point, that are
    multiples of `step` (10**max_places times the step is whole)."""

    interval: Interval
    max_digits: int
    max_places: int
    step: Fraction | None = None
    start: str = ""

    @cached_property
    def modulus(self) -> int:
        return int(self.step * 10**self.max_places) if self.step else 1

    @cached_property
    def halves(self) -> tuple[Interval, Interval]:
        """What the magnitude of a number without a sign, and of one with it, may be."""
        return self.interval.common(Interval(low=Fraction(0))), self.interval.mirrored()

    def moves(self, state: State) -> Iterable[tuple[CharSet, State]]:
        if isinstance(state, str):
            found: list[tuple[str, State | None]] = []
            if not state and not self.halves[1].empty():
                found.append(("-", "-"))
            found += [(str(d), self.settle(_Exact(state == "-", d, 1, None))) for d in range(10)]
        else:
            assert isinstance(state, _Exact | _Free)
            found = [(str(d), self.longer(state, d)) for d in range(10)] if self.has_room(state) else []
            if state.places is None and self.max_places and state.digits < self.max_digits:
                found.append((".", self.pointed(state)))
        return [(of(char), after) for char, after in found if after is not None]

    def has_room(self, state: _Exact | _Free) -> bool:
        if state.places is not None:
            return state.places < self.max_places and state.digits < self.max_digits
        if isinstance(state, _Free):
            return len(state.fits) > 1
        return state.value > 0 and state.digits < self.max_digits

    def longer(self, state: _Exact | _Free, digit: int) -> State | None:
        places = None if state.places is None else state.places + 1
        if isinstance(state, _Exact):
            return self.settle(_Exact(state.negative, 10 * state.value + digit, state.digits + 1, places))
        fits = state.fits[1:] if places is None else state.fits
        if not any(fits):
            return None
        return self.free(state.tens + digit, state.digits + 1, places, fits)

    def free(self, value: int, digits: int, places: int | None, fits: tuple[bool | None, ...]) -> _Free:
        multiple = value * 10 ** (self.max_places - (places or 0)) % self.modulus == 0
        return _Free(multiple, 10 * value % self.modulus, digits, places, fits)

    def pointed(self, state: _Exact | _Free) -> State | None:
        if isinstance(state, _Exact):
            return self.settle(state._replace(places=0))
        return state._replace(places=0, fits=(True,)) if state.fits[0] else None

    def settle(self, state: _Exact) -> State | None:
        """The state as it is, or free where no bound cuts through what may follow, or None where nothing may."""
        interval = self.halves[state.negative]
        scale = Fraction(1, 10 ** (state.places or 0))
        more = self.max_digits - state.digits if state.places is None and state.value else 0
        spans = [(state.value * scale * 10**n, (state.value + 1) * scale * 10**n) for n in range(more + 1)]
        fits = tuple(interval.meets(low, high) for low, high in spans)
        if None in fits:
            return state
        if not any(fits):
            return None
        return self.free(state.value, state.digits, state.places, fits)

    def accepts(self, state: State) -> bool:
        if not isinstance(state, _Exact | _Free) or state.places == 0:
            return False
        if isinstance(state, _Free):
            return state.fits[0] is True and state.multiple
        value = Fraction(state.value, 10 ** (state.places or 0))
        return self.halves[state.negative].holds(value) and (self.step is None or value % self.step == 0)
