"""JSON Schemas as grammars: what they let through is valid, what is valid gets through, and the rest is refused."""

import json
import subprocess
import sys
from random import Random
from typing import Any

import pytest

from llmrun.engine.gbnf.parser import parse
from llmrun.engine.gbnf.walk import Walk
from llmrun.engine.grammar import check_grammar_text
from llmrun.engine.schema import json_object_grammar, parse_schema, schema_to_gbnf
from llmrun.errors import GrammarError
from tests.derivation import Derivation
from tests.oracle import faults

INDENT = 32  # spaces and tabs that the grammar takes after a line break


def accepts(schema: Any, *values: Any) -> list[bool]:
    walk = Walk(parse(schema_to_gbnf(schema)))
    return [walk.accepts(json.dumps(value, ensure_ascii=False)) for value in values]


def texts_of(schema: Any, count: int = 20) -> list[str]:
    derivation = Derivation(schema_to_gbnf(schema), Random(1))
    return [derivation.draw(room) for room in range(count)]


def test_long_strings_keep_their_limit() -> None:
    """GRM-01: llama.cpp takes no repetition over 2000, and reads {0,20000} as no limit at all."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20000}}, "required": ["a"]}
    grammar = schema_to_gbnf(schema)
    check_grammar_text(grammar)
    assert len(grammar) < 1000
    walk = Walk(parse(grammar))
    assert walk.accepts('{"a": "' + "x" * 20000 + '"}')
    assert not walk.accepts('{"a": "' + "x" * 20001 + '"}')


@pytest.mark.parametrize(("low", "high"), [(0, 999), (0, 1000), (3, 2500), (2001, 2001), (700, 1700), (501, None)])
def test_length_bounds_are_exact(low: int, high: int | None) -> None:
    schema: dict[str, Any] = {"type": "string", "minLength": low}
    if high is not None:
        schema["maxLength"] = high
    lengths = [low - 1, low, low + 1] + ([high - 1, high, high + 1] if high is not None else [5000])
    lengths = sorted({n for n in lengths if n >= 0})
    expected = [low <= n and (high is None or n <= high) for n in lengths]
    assert accepts(schema, *("é" * n for n in lengths)) == expected


@pytest.mark.parametrize("bound", [10**5, 2**31 - 1, 10**18])
def test_huge_bounds_make_small_grammars(bound: int) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": bound}, "maxItems": bound}
    grammar = schema_to_gbnf(schema)
    check_grammar_text(grammar)
    assert len(grammar) < 3000


def test_recursive_references_work_and_validate() -> None:
    """GRM-03"""
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}
    assert accepts(schema, [], [[], [[[]]]], [1], [[""]]) == [True, True, False, False]
    for text in texts_of(schema):
        assert not faults(schema, json.loads(text))
    assert accepts({"type": "object", "properties": {"next": {"$ref": "#"}}}, {"next": {"next": {}}}) == [True]


def test_an_enum_behind_a_reference_is_enforced() -> None:
    """GRM-03"""
    schema = {"$ref": "#/definitions/c~1d~0", "definitions": {"c/d~": {"enum": ["red", "blue", 3, None]}}}
    assert accepts(schema, "red", 3, None, "green", 4) == [True, True, True, False, False]


def test_a_pattern_without_anchors_is_found_anywhere() -> None:
    """GRM-03"""
    schema = {"type": "string", "pattern": "abc"}
    assert accepts(schema, "abc", "xxabcyy", "ababc\n", "ab c", "") == [True, True, True, False, False]


def test_class_escapes_in_patterns_are_enforced() -> None:
    """GRM-03"""
    assert accepts({"type": "string", "pattern": r"^\d{3}$"}, "123", "12", "1234", "12a") == [
        True,
        False,
        False,
        False,
    ]
    assert accepts({"type": "string", "pattern": r"^\w+$"}, "a_9", "a b", "") == [True, False, False]


@pytest.mark.parametrize("reference", ["https://example.com/s.json", "other.json#/a", "file:///etc/passwd", "//h/x"])
def test_remote_references_are_refused_not_fetched(reference: str) -> None:
    """GRM-03"""
    with pytest.raises(GrammarError, match="nothing is fetched") as caught:
        schema_to_gbnf({"type": "object", "properties": {"a": {"$ref": reference}}})
    assert "#/properties/a/$ref" in caught.value.message


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),  # GRM-03
        ({"not": {"type": "string"}}, "#/not"),
        ({"if": {}, "then": {}}, "#/if"),
        ({"anyOf": [{"type": "null"}, {"dependentRequired": {"a": ["b"]}}]}, "#/anyOf/1/dependentRequired"),
        ({"properties": {"a/b": {"patternProperties": {"x": {}}}}}, "#/properties/a~1b/patternProperties"),
        ({"type": "array", "contains": {"type": "null"}}, "#/contains"),
        ({"type": "object", "unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"type": "object", "propertyNames": {"pattern": "x"}}, "#/propertyNames"),
        ({"$dynamicRef": "#a"}, "#/$dynamicRef"),
        ({"$ref": "#anchor"}, "#/$ref"),
        ({"$ref": "#/$defs/missing"}, "#/$ref"),
        ({"$ref": 5}, "#/$ref"),
        ({"items": {"$ref": "#/items"}}, "#/items"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "#"),
        ({"properties": {"a": {"$id": "https://x.org/y"}}}, "#/properties/a/$id"),
        ({"type": "strin"}, "#/type"),
        ({"type": []}, "#/type"),
        ({"enum": []}, "#/enum"),
        ({"enum": "ab"}, "#/enum"),
        ({"const": float("nan")}, "#"),
        ({"type": "string", "minLength": -1}, "#/minLength"),
        ({"type": "string", "maxLength": "5"}, "#/maxLength"),
        ({"type": "string", "pattern": "(?=a)"}, "#/pattern"),
        ({"type": "string", "pattern": r"(a)\1"}, "#/pattern"),
        ({"type": "string", "pattern": r"\bword"}, "#/pattern"),
        ({"type": "string", "pattern": r"\p{L}"}, "#/pattern"),
        ({"type": "string", "pattern": "("}, "#/pattern"),
        ({"type": "string", "pattern": "a{2,1}"}, "#/pattern"),
        ({"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}, "#"),
        ({"type": "string", "pattern": "a{99999}"}, "#/pattern"),
        ({"type": "string", "format": "color"}, "#/format"),
        ({"type": "integer", "multipleOf": 0}, "#/multipleOf"),
        ({"type": "number", "multipleOf": 0.01}, "#/multipleOf"),
        ({"type": "integer", "multipleOf": 999983}, "#"),
        ({"type": "number", "minimum": 0.1234567890123456}, "#"),
        ({"minimum": "1"}, "#/minimum"),
        ({"minimum": float("inf")}, "#/minimum"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 5}}, "#/properties/a"),
        ({"required": "a"}, "#/required"),
        ({"anyOf": []}, "#/anyOf"),
        ({"prefixItems": {}}, "#/prefixItems"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf"),
        ({"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "ipv4"}]}, "#/oneOf"),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "#/oneOf"),
        ([], "#"),
        ("x", "#"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        schema_to_gbnf(schema)
    assert caught.value.message.startswith(f"schema, at {place}:")
    assert caught.value.hint and caught.value.exit_status == 2


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
        {"type": "number", "minimum": 3, "exclusiveMaximum": 3},
        {"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "array", "prefixItems": [{}], "items": False, "minItems": 2},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False, "minProperties": 2},
        {"type": "object", "minProperties": 2},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"const": "a", "enum": ["b", "c"]},
        {"type": "string", "enum": [1, 2]},
        {"enum": ["ab", "cd"], "pattern": "x"},
        {"type": "string", "pattern": "^a{5}$", "maxLength": 4},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"anyOf": [False, {"type": "null", "const": 1}]},
    ],
)
def test_a_schema_that_nothing_satisfies_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="schema, at #"):
        schema_to_gbnf(schema)


def test_branches_that_contradict_themselves_are_left_out() -> None:
    schema = {"type": "string", "anyOf": [{"type": "integer"}, {"maxLength": 2}, False, {"const": 5}]}
    assert accepts(schema, "ab", "abc", 5) == [True, False, False]
    endless = {"anyOf": [{"type": "null"}, {"properties": {"a": {"$ref": "#/anyOf/1"}}, "required": ["a"]}]}
    assert accepts(endless, None) == [True]
    with pytest.raises(GrammarError, match="without end"):
        schema_to_gbnf(
            {"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"items": {"$ref": "#/$defs/x"}, "minItems": 1}}}
        )


def test_names_of_other_properties_never_repeat_a_declared_one() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "null"}, "ab": False, 'q"': {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    }
    good = [{"a": None, "b": 1}, {"a": None, 'q"': None, "": 1, "abc": 2}, {'q"x': 3}]
    assert accepts(schema, *good) == [True] * 3
    assert accepts(schema, {"a": 1}, {"ab": 1}, {'q"': 1}) == [False] * 3
    walk = Walk(parse(schema_to_gbnf(schema)))
    assert not walk.accepts(r'{"\u0061": 1}')


def test_objects_with_no_word_on_other_properties_get_none() -> None:
    assert accepts({"properties": {"a": {}}}, {"a": [1]}, {"b": 1}, 5) == [True, False, False]
    assert accepts({"properties": {"a": {}}, "additionalProperties": True}, {"a": 1, "b": 2}) == [True]
    assert accepts({"type": "object"}, {"b": {"c": None}}, {}) == [True, True]
    assert accepts({"required": ["x"]}, {"x": 1}, {"x": 1, "y": 2}, {}) == [True, True, False]


def test_properties_are_counted() -> None:
    schema: dict[str, Any] = {"properties": {n: {"type": "null"} for n in "abcd"}, "required": ["c"]}
    objects = [dict.fromkeys(names) for names in ("c", "ac", "abc", "cd", "abcd", "ab")]
    assert accepts(schema | {"minProperties": 2, "maxProperties": 3}, *objects) == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    others = {"additionalProperties": {"type": "null"}, "minProperties": 2, "maxProperties": 3}
    assert accepts(schema | others, {"c": None}, {"c": None, "x": None}) == [False, True]


def test_many_optional_properties_make_no_large_grammar() -> None:
    schema = {"type": "object", "properties": {f"property{n}": {"type": "integer"} for n in range(300)}}
    grammar = schema_to_gbnf(schema)
    assert len(grammar) < 100_000
    check_grammar_text(grammar)
    assert Walk(parse(grammar)).accepts('{"property7": 1, "property299": -5}')


def test_one_of_takes_the_value_of_exactly_one_branch() -> None:
    kinds = [{"properties": {"kind": {"const": k}, "n": {"type": "integer"}}} for k in ("a", "b")]
    # Without a required kind an object without it would be valid for both: it is required here.
    assert accepts({"oneOf": kinds}, {"kind": "a", "n": 1}, {"kind": "b"}, {"n": 1}, {}) == [True, True, False, False]
    either = {
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert accepts(either, {"a": None}, {"b": None}, {"a": None, "b": None}, {}) == [True, True, False, False]
    assert accepts({"oneOf": [{"enum": [1, 2]}, {"enum": [3]}, {"type": "string"}]}, 1, 3, "x", 4) == [True] * 3 + [
        False
    ]
    lengths = [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}]
    assert accepts({"oneOf": lengths}, "", "abc") == [True, True]
    with pytest.raises(GrammarError, match="#/oneOf"):
        schema_to_gbnf({"oneOf": [{"enum": [1, 2]}, {"enum": [2.0, 3]}]})


def test_branches_that_begin_alike_share_their_beginning() -> None:
    """Told apart by their last property, recursive branches would double the stacks with every level."""
    here = {"$ref": "#/$defs/e"}
    branches = [
        {
            "type": "object",
            "properties": {"left": here, "right": here, "op": {"const": op}},
            "required": ["left", "right", "op"],
        }
        for op in ("add", "mul")
    ]
    schema = {**here, "$defs": {"e": {"anyOf": [{"type": "integer"}, *branches]}}}
    value: Any = 1
    for level in range(12):
        value = {"left": value, "right": 2, "op": ("add", "mul")[level % 2]}
    assert accepts(schema, value) == [True]
    with pytest.raises(GrammarError, match="too much alike"):
        nested = {"type": "array", "items": here}
        schema_to_gbnf({**here, "$defs": {"e": {"anyOf": [nested, {**nested, "minItems": 2}]}}})


def test_numbers_keep_their_bounds_exactly() -> None:
    byte = {"type": "integer", "minimum": 0, "maximum": 255}
    assert accepts(byte, *range(-2, 300)) == [0 <= n <= 255 for n in range(-2, 300)]
    assert accepts({"type": "integer", "format": "int8"}, -129, -128, 127, 128) == [False, True, True, False]
    share = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert accepts(share, 0.001, 1, 1.0, 0.5, 0, 1.001, -0.5) == [True] * 4 + [False] * 3
    draft4 = {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 5}
    assert accepts(draft4, 3, 4, 5) == [False, True, True]
    big = {"type": "integer", "minimum": 2**63, "maximum": 2**64}
    assert accepts(big, 2**63 - 1, 2**63, 2**64, 2**64 + 1) == [False, True, True, False]
    assert accepts({"type": "number", "maximum": 1.7976931348623157e308}, 12.5) == [True]


def test_names_of_properties_do_not_mix_with_those_of_rules() -> None:
    names = ["json-value", "json-json-ws", "root", "rest", "char", "json-string", "0", "é", ""]
    schema = {"properties": {name: {"type": "integer", "minimum": 1, "maximum": 3} for name in names} | {"any": {}}}
    assert accepts(schema, dict.fromkeys(names, 2) | {"any": [{" ": "x"}]}, {"root": 4}) == [True, False]


def test_equal_schemas_are_written_once() -> None:
    person = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}
    grammar = schema_to_gbnf({"properties": {f"p{n}": person for n in range(50)}})
    assert grammar.count('"\\"name\\":"') == 1


def test_white_space_and_digits_are_bounded() -> None:
    for schema in ({}, {"type": "array"}, {"type": "number"}, {"type": "integer", "minimum": 5}, True):
        walk = Walk(parse(schema_to_gbnf(schema)))
        assert not walk.accepts("[" + " " * 2 + "]") and not walk.accepts("[\n" + " " * (INDENT + 1) + "]")
        assert not walk.accepts("1" * 40)


def test_any_json_object() -> None:
    grammar = json_object_grammar()
    check_grammar_text(grammar)
    walk = Walk(parse(grammar))
    good = ["{}", '{"a": [1, 2.5e3, "x\\u00e9\\ud83d\\ude00", {"b": null}], "c": true}']
    assert all(json.loads(text) is not None and walk.accepts(text) for text in good)
    assert not any(walk.accepts(text) for text in ("[]", "{a: 1}", '{"a"}', '{"x": "\\ud800"}', '{"a": 01}', ""))


@pytest.mark.parametrize(
    "text", ["", " \n", "{", "{'a': 1}", '{"minimum": NaN}', "nul", "[" * 100_000, '{"a": 1} x', "1" * 5000]
)
def test_what_is_no_json_is_an_error(text: str) -> None:
    """GRM-01"""
    with pytest.raises(GrammarError, match="the schema is"):
        parse_schema(text)


def test_llama_cpp_is_not_needed_to_convert() -> None:
    code = "import sys, llmrun.engine.schema as s; s.schema_to_gbnf({}); print('llama_cpp' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "False\n"
