"""Random JSON Schemas as grammars: what they let through is valid, and what is valid gets through."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from llmrun.engine.context import Context, ContextSettings
from llmrun.engine.engine import Engine
from llmrun.engine.gbnf.parser import parse
from llmrun.engine.gbnf.walk import Walk
from llmrun.engine.model import Model, ModelSettings
from llmrun.engine.params import SamplingParams
from llmrun.engine.request import Finished, Request, Token
from llmrun.engine.schema import schema_to_gbnf
from llmrun.engine.schema.document import ABOUT
from llmrun.errors import GrammarError
from tests.derivation import Derivation
from tests.oracle import faults, is_schema
from tests.schemas import Drawer

DUMPS: tuple[dict[str, Any], ...] = ({"separators": (",", ":")}, {}, {"indent": 2})
INDENT = 32  # spaces and tabs that the grammar takes after a line break


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_random_schemas_let_through_what_is_valid_and_nothing_else(start: int) -> None:
    for seed in range(start, start + 50):
        random = Random(seed)
        drawn = Drawer(random, bounded=False).document()
        grammar = schema_to_gbnf(drawn.schema)
        derivation = Derivation(grammar, random)
        for room in (0, 5, 30, 200):
            text = derivation.draw(room)
            assert not faults(drawn.schema, json.loads(text)), (seed, text)
        walk = Walk(parse(grammar))
        for dump in DUMPS:
            value = drawn.make()
            assert not faults(drawn.schema, value), seed
            text = json.dumps(value, ensure_ascii=False, **dump)
            if all(len(line) - len(line.lstrip(" ")) <= INDENT for line in text.splitlines()):
                assert walk.accepts(text), (seed, text)


def answer(engine: Engine, grammar: str, seed: int, max_tokens: int) -> tuple[str, Finished]:
    sampling = SamplingParams(temp=1, top_k=0, top_p=1, min_p=0, seed=seed, grammar=grammar)
    engine.submit(Request((1, 2, 3), sampling, max_tokens=max_tokens))
    text = ""
    while True:
        for event in engine.step():
            if isinstance(event, Token):
                text += event.text
            if isinstance(event, Finished):
                return text + event.text, event


def sample(path: Path, count: int, max_tokens: int) -> None:
    with Model.load(path, ModelSettings()) as model:
        engine = Engine(Context(model, ContextSettings(max_tokens + 64)))
        for seed in range(count):
            schema = Drawer(Random(seed), bounded=True).document().schema
            text, finished = answer(engine, schema_to_gbnf(schema), seed, max_tokens)
            assert finished.reason == "stop", (seed, finished.error, text)
            assert not faults(schema, json.loads(text)), (seed, text)


def test_a_tiny_random_model_answers_by_random_schemas(tiny_model: Path) -> None:
    sample(tiny_model, count=50, max_tokens=1900)


def test_the_real_model_answers_by_random_schemas(smollm2: Path) -> None:
    sample(smollm2, count=8, max_tokens=900)


def schema_like(random: Random, depth: int) -> Any:
    """A schema, but some keywords have values of a wrong type, or contradict others."""
    if random.random() < 0.1 or not depth:
        return random.choice([True, False, {}, {"type": "string"}, {"$ref": "#"}, {"$ref": "#/$defs/a"}, None, 5])

    def inner() -> Any:
        return schema_like(random, depth - 1)

    kinds = ["object", "array", "string", "integer", "number", "null", "boolean", ["string", "null"], "no"]
    makers: list[tuple[str, Callable[[str], Any]]] = [
        ("type", lambda _: random.choice(kinds)),
        ("enum const", lambda _: random.choice([[1, "a", None], ["x", {"a": []}], "b", 5, []])),
        ("properties $defs", lambda _: {name: inner() for name in random.sample("abc", 2)}),
        ("items additionalProperties additionalItems not", lambda _: inner()),
        ("anyOf oneOf allOf prefixItems", lambda _: [inner() for _ in range(random.randint(0, 3))]),
        ("required", lambda _: random.sample("abcd", random.randint(0, 2))),
        ("pattern format", lambda key: random.choice(["^a+$", "(", "x|y"] if key == "pattern" else ["date", "x"])),
        (" ".join(sorted(ABOUT["number"])), lambda _: random.choice([-3, 0, 1, 2.5, 10, 1e300])),
        ("minLength maxLength minItems maxItems minProperties maxProperties", lambda _: random.randint(0, 3)),
        ("$ref", lambda _: random.choice(["#", "#/$defs/a", "#/properties/b", "#/items", "x"])),
    ]
    schema = {}
    for _ in range(random.randint(1, 3)):
        keys, make = random.choice(makers)
        key = random.choice(keys.split())
        schema[key] = make(key) if random.random() < 0.97 else inner()
    return schema


def test_random_schema_like_values_end_in_a_grammar_or_an_error() -> None:
    refused = valid = 0
    for seed in range(600):
        random = Random(seed)
        schema = schema_like(random, 3)
        try:
            derivation = Derivation(schema_to_gbnf(schema), random)
        except GrammarError:
            refused += 1
            continue
        if is_schema(schema):
            valid += 1
            text = derivation.draw(random.choice([0, 5, 30]))
            assert not faults(schema, json.loads(text)), (seed, text)
    assert refused > 200 and valid > 120
