"""Patterns as automata, against Python's `re`."""

import re
from random import Random

import pytest

from llmrun.engine.gbnf.automaton import Both, Measured, Others, TooManyStates, accepts, explore
from llmrun.engine.gbnf.pattern import Pattern, PatternError
from tests.derivation import accepted

LETTERS = 'abAZ09_- .$^"\\\n/é'
ATOMS = ["a", "b", "ab", ".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]", "[^a]", "[a-z0-9_-]", r"[^\w.]"]
ATOMS += [r"\.", r"\\", r"\$", r"\x41", r"\u0062", r"[\]\-]", r"\n", r"\/", "^", "$", "(?:a|b)", "(ab|)", "(a+)"]
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,3}", "{1,}", "*?"]


def random_pattern(random: Random, depth: int = 2) -> str:
    parts = []
    for _ in range(random.randint(0, 4)):
        atom = f"({random_pattern(random, depth - 1)})" if depth and random.random() < 0.3 else random.choice(ATOMS)
        if atom not in ("^", "$") and random.random() < 0.4:
            atom = (f"(?:{atom})" if len(atom) > 1 else atom) + random.choice(
                ["*", "+", "?", "{2}", "{1,3}", "{1,}", "*?"]
            )
        parts.append(atom)
    text = "".join(parts)
    return f"{text}|{random_pattern(random, depth - 1)}" if depth and random.random() < 0.2 else text


def test_random_patterns_accept_what_re_finds() -> None:
    """In ASCII the two agree; beyond, \\w and its kin take less, never more. `$` takes no line break here."""
    random = Random(3)
    matched = 0
    for _ in range(700):
        source = random_pattern(random)
        machine = Pattern(source)
        strict = re.compile(source.replace(r"\$", r"\x24").replace("$", r"\Z"))
        for _ in range(12):
            text = "".join(random.choice(LETTERS) for _ in range(random.randint(0, 6)))
            found = accepts(machine, text)
            matched += found
            if found:
                assert re.search(source, text), (source, text)
            elif text.isascii():
                assert not strict.search(text), (source, text)
    assert matched > 2000


def test_an_explored_pattern_accepts_the_same_texts() -> None:
    random = Random(4)
    for _ in range(70):
        source = random_pattern(random)
        machine = Both(Pattern(source), Pattern(random_pattern(random)))
        explored = explore(machine)
        texts = ["".join(random.choice(LETTERS) for _ in range(random.randint(0, 5))) for _ in range(40)]
        if explored is None:
            assert not any(accepts(machine, text) for text in texts)
            continue
        assert [accepted(explored, text) for text in texts] == [accepts(machine, text) for text in texts]


@pytest.mark.parametrize(
    ("source", "yes", "no"),
    [
        ("", ["", "x"], []),
        ("a", ["a", "xax"], ["", "b"]),
        ("^a|b$", ["a", "ax", "xb"], ["xa", "bx"]),
        ("^(a|b$)", ["a", "ax", "b"], ["bx"]),
        ("(^a)(b$)", ["ab"], ["xab", "abx"]),
        ("a^b", [], ["ab", "a\nb", ""]),
        ("x$|^$", ["", "x"], ["y"]),
        ("^{a}$", ["{a}"], ["a"]),
        ("^a{2}b{0}c$", ["aac"], ["aabc", "ac"]),
        (r"^[\d-]+$", ["1-2"], ["a"]),
        (r"^[+\-*]$", ["-", "+"], [","]),
        (r"^\D$", ["a", "é"], ["5", "\u0665"]),  # ARABIC-INDIC DIGIT FIVE is a digit to Python
        (r"^\w$", ["a"], ["é", "-"]),
        (r"^\W$", ["-", " "], ["é", "a"]),
        (r"^\s$", [" ", "\t", "\u2003"], ["\x85", "\x1c", "a"]),
        (r"^.$", ["a", "\t", "😀"], ["\n", "\r", "\u2028"]),
        ("^(?P<n>(?<m>a+)+)+$", ["aaaa"], ["", "b"]),
    ],
)
def test_patterns(source: str, yes: list[str], no: list[str]) -> None:
    machine = Pattern(source)
    assert [text for text in yes if not accepts(machine, text)] == []
    assert [text for text in no if accepts(machine, text)] == []


REFUSED = r"""
(?=a) (?!a) (?<=a)b (?<!a)b (?i)a (?#x) (a)\1 (?<n>a)\k<n> \bx \B \p{L} \cA
( ) a) (a [ [a [] [^] []a] [z-a] [a-\d] * a** a{1}{2} a++ ? {2} a{3,2} a{,3} a{99999} ^* ${2}
\ \xZ1 \u12 \u{41} \A \Z \0 \q \é (((a{99}){99}){99}){99} ((((((((a+b+)+c+)+)+)+){9}){9}){9}){9}
"""


@pytest.mark.parametrize("source", [*REFUSED.split(), "(" * 60 + ")" * 60])
def test_what_has_no_common_meaning_or_is_too_large_is_refused(source: str) -> None:
    with pytest.raises(PatternError):
        Pattern(source)


def test_a_pattern_of_too_many_states_is_refused() -> None:
    with pytest.raises((TooManyStates, PatternError)):
        explore(Pattern("^(a|b)*a(a|b){20}$"))


def test_bounds_on_the_length_are_exact() -> None:
    random = Random(6)
    for _ in range(150):
        explored = explore(Pattern(f"^({random_pattern(random)})$"))
        if explored is None:
            continue
        low = random.randint(0, 4)
        high = random.choice([None, low, low + 1, low + 4])
        measured = explore(Measured(explored, low, high))
        for _ in range(30):
            text = "".join(random.choice(LETTERS) for _ in range(random.randint(0, 7)))
            expected = accepted(explored, text) and low <= len(text) <= (99 if high is None else high)
            assert (measured is not None and accepted(measured, text)) == expected


def test_bounds_that_hold_anyway_cost_no_states() -> None:
    explored = explore(Pattern("^[a-z]{2,30}$"))
    assert explored is not None and len(explored.edges) == 31
    measured = explore(Measured(explored, 1, 255))
    assert measured is not None and len(measured.edges) == 31


def test_all_but_some_words() -> None:
    words = frozenset(["a", "ab", "", "b"])
    for text in ("", "a", "ab", "b", "abc", "c", "ba"):
        assert accepts(Others(words), text) == (text not in words)
