"""Structured output at the command line: exit status 2 before anything is generated, or an answer that follows."""

import json
from pathlib import Path

import pytest

from tests.cli import llmrun
from tests.oracle import faults

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"$ref": "#/$defs/kind"},
        "code": {"type": "string", "pattern": r"^\d{3}$"},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "code"],
    "$defs": {"kind": {"enum": ["old", "new"]}},
}


@pytest.mark.parametrize(
    ("option", "content", "words"),
    [
        ("--grammar", "root ::= foo", "undefined rule 'foo'"),
        ("--grammar", "", "the grammar is empty"),
        ("--grammar", 'root ::= "a"{0,20000}', "more than 2000"),
        ("--grammar", "root ::= " + "(" * 30_000, "nested more than"),
        ("--json-schema", "", "the schema is empty"),
        ("--json-schema", '{"type":', "no JSON"),
        ("--json-schema", '{"type": "array", "uniqueItems": true}', "#/uniqueItems"),
        ("--json-schema", '{"$ref": "https://example.com/s.json"}', "nothing is fetched"),
        ("--json-schema", '{"type": "integer", "minimum": 2, "maximum": 1}', "no number"),
    ],
)
def test_what_cannot_be_enforced_ends_before_the_answer(
    tiny_model: Path, tmp_path: Path, option: str, content: str, words: str
) -> None:
    """GRM-01, GRM-03"""
    path = tmp_path / "given"
    path.write_text(content, encoding="utf-8")
    llmrun("run", "-m", tiny_model, "x", option, path, "-n", 5).failed(2, words)


def test_an_answer_follows_its_schema(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    for seed in range(3):
        done = llmrun("run", "-m", tiny_model, "x", "--json-schema", path, "--seed", seed, "--temp", 1)
        assert done.status == 0, done
        assert faults(SCHEMA, json.loads(done.text)) == []


def test_a_long_limit_is_no_fault(tiny_model: Path) -> None:
    """GRM-01: only -n ends this one."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20000}}, "required": ["a"]}
    done = llmrun("run", "-m", tiny_model, "x", "--json-schema", json.dumps(schema), "-n", 5, "--seed", 1)
    assert done.status == 1 and done.text.startswith("{") and "incomplete" in done.err


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_what_only_the_model_can_refuse_is_wrong_usage_too(tiny_model: Path, extra: tuple[str, ...]) -> None:
    llmrun("run", "-m", tiny_model, "x", "--grammar", 'root ::= "a" <no-such-token>', "-n", 5, *extra).failed(
        2, "<no-such-token> is not one token of this model"
    )
    llmrun("run", "-m", tiny_model, "x", "--grammar", 'root ::= "ab"', "--prefix", "z", "-n", 5, *extra).failed(
        2, "prefix does not fit the grammar"
    )
