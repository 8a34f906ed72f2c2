"""Grammar text of users: what llama.cpp refuses, what would crash or hang it, and what is fine."""

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.gbnf.parser import parse
from llmrun.engine.gbnf.walk import Walk
from llmrun.engine.grammar import check_grammar_text, token_names
from llmrun.engine.model import Model, ModelSettings
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Finished, Request
from llmrun.engine.schema import json_object_grammar, schema_to_gbnf
from llmrun.errors import GrammarError

FINE = (
    'root ::= "yes" | "no"',
    '# a comment\r\nroot ::= item+ # more\r\nitem ::= [a-z]{2,5} "\\n"\r\n',
    'root ::= ("a" |\n  "b" # why\n )*\n\n\n',
    'root ::= x\nx ::= "\\x41\\u00e9\\U0001F600\\"\\\\\\[\\]\\-\\t" [^"\\\\\\x00-\\x1f] [-a] [a-] [\\]] .',
    'root ::= e\ne ::= t ("+" t)*\nt ::= [0-9]+ | "(" e ")"',
    'root ::= ("a"{100}){100} "b"{0,2000} "c"{2000,} "d"{0}',
    'root ::= "" | "a" root',
    'root ::= ("a"*)* x*\nx ::= y\ny ::= "b"*',
    "root ::= " + "(" * 90 + '"a"' + ")" * 90,
    "root ::= " + " | ".join(f'"word{n}"' for n in range(1500)),
    "root ::= unused\nunused ::= .\nother ::= root",
    json_object_grammar(),
)
CHAIN = "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(5000)) + 'r5000 ::= "a"'
SHARED = "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1} | r{n + 1}\n" for n in range(40)) + 'r40 ::= "a"'
FORKED = "root ::= r0\n" + "".join(f'r{n} ::= r{n + 1} "x" | r{n + 1} "y"\n' for n in range(24)) + 'r24 ::= "a"'
BAD = (
    ("", "empty"),  # GRM-01: llama.cpp takes it and constrains nothing
    (" \n\t", "empty"),
    ("# nothing\n", "no rules"),
    ("root ::= foo", "line 1, column 10: undefined rule 'foo'"),  # GRM-01
    ('a ::= "x"', "no rule named 'root'"),
    ('root ::= "a"\nroot ::= "b"', "line 2, column 1: rule 'root' is defined twice"),
    ("root := x", "column 6: expected ::="),
    ('= "a"', "expected a rule name"),
    ('root ::= "a', "not closed"),
    ('root ::= "a\\', "unknown escape"),
    ("root ::= [a", "not closed"),
    ("root ::= []", "empty character class"),
    ("root ::= [^]", "empty character class"),
    ("root ::= [z-a]", "matches no character"),
    ("root ::= [^\\x01-\\U0010FFFF]", "matches no character"),
    ('root ::= "\\x00"', "no text can hold"),
    ('root ::= "\\q"', "unknown escape"),
    ('root ::= "\\u12"', "unknown escape"),
    ('root ::= ("a"', "column 10: this group is not closed"),
    ('root ::= "a")', "unexpected '\\)'"),
    ("root ::= *", "repetition of nothing"),
    ('root ::= ""+', "repetition of nothing"),
    ('root ::= "a"{', "expected a repetition"),
    ('root ::= "a"{,3}', "expected a repetition"),
    ('root ::= "a"{5,2}', "at least 5 and at most 2"),  # an endless loop in llama.cpp
    ('root ::= "a"{0,20000}', "more than 2000"),  # GRM-01: no bound at all in llama.cpp
    ('root ::= "a"{99999999999999999999}', "more than 2000"),
    ('root ::= ("a"?){1900}', "more than 2000"),
    ('root ::= x{2000}\nx ::= "' + "a" * 300 + '"{2000}', "grows past"),
    ("root ::= <5", "expected a token"),
    ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested more than 100"),  # SIGSEGV in llama.cpp
    (CHAIN, "chain of more than 2000"),  # SIGSEGV in llama.cpp, if longer
    ('root ::= root "a" | "b"', "left recursive"),
    ('root ::= a root "x" | "y"\na ::= b\nb ::= "" | "z"', "left recursive"),  # llama.cpp eats all memory
    (SHARED, "too ambiguous"),  # hours in llama.cpp
    (FORKED, "too ambiguous"),  # all memory in llama.cpp
    ('root ::= ("a"?){1000}', "too ambiguous"),
    ('root ::= "a" root "b" | "a" root "c" | ""', "too ambiguous"),
    ('root ::= ("" | [^a]{2}){0,40} "b"', "too ambiguous"),
    ('root ::= "a"\0', "NUL"),
    ('root ::= "\ud800"', "not UTF-8"),
    ('root ::= "a"\n' * 400_000, "longer than"),
)


@pytest.mark.parametrize("text", FINE)
def test_good_grammars_pass(text: str) -> None:
    check_grammar_text(text)


@pytest.mark.parametrize(("text", "reason"), BAD, ids=range(len(BAD)))
def test_bad_grammars_are_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        check_grammar_text(text)
    assert caught.value.exit_status == 2 and caught.value.hint
    assert len(caught.value.message) < 200


def test_a_check_takes_no_longer_than_a_moment() -> None:
    for text, _ in BAD:
        started = time.process_time()
        with pytest.raises(GrammarError):
            check_grammar_text(text)
        assert time.process_time() - started < 20


def test_texts_are_followed_as_the_grammar_says() -> None:
    walk = Walk(parse('root ::= "a"{2,3} ([b-d] | "é")* x?\nx ::= "." . [^.]'))
    good = ("aa", "aaa", "aabcd", "aaéb", "aa.xy", "aaab.😀z")
    assert [text for text in good if not walk.accepts(text)] == []
    assert not any(walk.accepts(text) for text in ("", "a", "aaaa", "aae", "aa.", "aa.x", "aa.x."))


def run_in_llama_cpp(model: Path, grammars: list[str]) -> list[str]:
    command = [sys.executable, "-m", "tests.gbnf_worker", str(model)]
    run = subprocess.run(command, input=json.dumps(grammars), capture_output=True, text=True, timeout=300)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:], grammars[len(lines)])
    return lines


def test_llama_cpp_takes_what_passes(tiny_model: Path) -> None:
    schemas: list[dict[str, Any]] = [{"maxLength": n} for n in (20000, 10**7, 10**18)]
    schemas += [{"minimum": 0.5}, {"format": "email"}, {"properties": {f"p{n}": {} for n in range(200)}}]
    grammars = [*FINE, *map(schema_to_gbnf, schemas)]
    assert [line.split()[0] for line in run_in_llama_cpp(tiny_model, grammars)] == ["ok"] * len(grammars)


BITS = [
    '"a"',
    "[a-z]",
    "root",
    "*",
    "+",
    "?",
    "{2}",
    "{0,3}",
    "{1,}",
    "{5,2}",
    "{0,2001}",
    "(",
    ")",
    "|",
    "\n",
    "::=",
]
BITS += ["(", '""', '[^"]', ".", "\\x", "\\u0041", '"', "[", "]", "#\n", "(a)*", "(b?)*", "{1999}", "\0", "é", "\\"]
ITEMS = ['"a"', '"b"', '"ab"', "[a-c]", "[^a]", ".", '""', "root", "a", "b", "c"]
REPEATS = ["", "", "", "?", "*", "+", "{2}", "{0,3}", "{3,}", "{30}", "{0,40}"]


def mutated(random: Random, text: str) -> str:
    for _ in range(random.choice([1, 1, 1, 1, 2])):
        start = random.randrange(len(text) + 1)
        end = min(len(text), start + random.choice([0, 0, 1, 3, 10]))
        text = text[:start] + random.choice([random.choice(BITS), "", text[end : end + 20]]) + text[end:]
    return text


def random_grammar(random: Random) -> str:
    def alternatives(depth: int) -> str:
        found = []
        for _ in range(random.choice([1, 2, 2, 3])):
            items = [
                (f"({alternatives(depth + 1)})" if depth < 3 and random.random() < 0.2 else random.choice(ITEMS))
                + random.choice(REPEATS)
                for _ in range(random.choice([1, 1, 2, 3]))
            ]
            found.append(" ".join(items))
        return " | ".join(found)

    return "\n".join(f"{name} ::= {alternatives(0)}" for name in ("root", "a", "b", "c"))


def test_damaged_and_random_grammars_end_by_no_signal(tiny_model: Path) -> None:
    """GRM-01: refused with a reason, or sampled from; llama.cpp never crashes, hangs or gets stuck."""
    random = Random(2)
    small = [text for text in FINE if len(text) < 3000]
    grammars = [mutated(random, random.choice(small)) for _ in range(350)]
    grammars += [random_grammar(random) for _ in range(350)]
    lines = run_in_llama_cpp(tiny_model, grammars)
    ends = [line.split()[0] for line in lines]
    assert set(ends) == {"ok", "refused"}
    assert ends.count("ok") > 70 and ends.count("refused") > 100
    slow = [
        (line, grammar)
        for line, grammar in zip(lines, grammars, strict=True)
        if line[:2] == "ok" and float(line[3:]) > 5
    ]
    assert slow == []


@pytest.mark.parametrize("name", ["<[99999]>", "<no such token>", "!<no such token>"])
def test_tokens_that_the_model_lacks_are_refused(tiny_model: Path, name: str) -> None:
    with Model.load(tiny_model, ModelSettings()) as model:
        finished = finish(model, f'root ::= "a" {name}')
    assert finished.reason == "error" and "not one token of this model" in finished.error


def test_tokens_of_the_model_are_taken(tiny_model: Path) -> None:
    assert token_names('root ::= <|im_end|> !<[5]> "<x>" [<] # <y>') == {"<|im_end|>", "<[5]>"}
    with Model.load(tiny_model, ModelSettings()) as model:
        assert finish(model, 'root ::= "ab" <|im_start|>').reason == "stop"


def test_where_no_token_fits_the_request_ends_with_an_error(tiny_model: Path) -> None:
    """Accepting a refused token would end the process by a C++ exception."""
    with Model.load(tiny_model, ModelSettings()) as model:
        banned = (model.vocab.tokenize("c")[0], float("-inf"))
        finished = finish(model, 'root ::= "abc"', logit_bias=(banned,))
    assert finished.reason == "error" and "no token" in finished.error


def finish(model: Model, grammar: str, **sampling: Any) -> Finished:
    engine = Engine(Context(model, ContextSettings(256)))
    engine.submit(Request((1, 2), SamplingParams(temp=1, seed=1, grammar=grammar, **sampling), max_tokens=20))
    while True:
        for event in engine.step():
            if isinstance(event, Finished):
                return event
