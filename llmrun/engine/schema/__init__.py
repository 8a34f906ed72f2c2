"""JSON Schema to GBNF: what a grammar can enforce of a schema, and a refusal with its place for the rest."""

import json
from typing import NoReturn

from llmrun.engine.gbnf.parser import parse
from llmrun.engine.gbnf.writer import Rules
from llmrun.engine.grammar import is_ambiguous
from llmrun.engine.schema.document import Document
from llmrun.engine.schema.json_rules import json_rule
from llmrun.engine.schema.values import Values
from llmrun.errors import GrammarError


def schema_to_gbnf(schema: object) -> str:
    """A grammar all of whose texts are JSON values that satisfy the schema.

    Raises GrammarError with the JSON pointer of what cannot be enforced, is malformed, or contradicts itself.
    """
    rules = Rules()
    values = Values(Document(schema), rules)
    try:
        values.write()
    except RecursionError:
        raise GrammarError("the schema is nested too deep", "use $ref for what repeats") from None
    text = rules.text()
    if values.ambiguous and is_ambiguous(parse(text)):
        raise GrammarError(
            "the schema's anyOf or oneOf branches begin too much alike to be followed together",
            "let each begin with a property that tells it from the others",
        )
    return text


def json_object_grammar() -> str:
    """A grammar for any JSON object."""
    rules = Rules()
    rules.define("root", json_rule(rules, "object"))
    return rules.text()


def parse_schema(text: str) -> object:
    """The schema in a JSON text. Raises GrammarError."""

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON value")

    if not text.strip():
        raise GrammarError("the schema is empty", "a schema that allows any JSON value is {}")
    try:
        return json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise GrammarError(
            f"the schema is no JSON: {error.msg} at line {error.lineno}, column {error.colno}", "check the file"
        ) from None
    except ValueError as error:
        raise GrammarError(f"the schema is no JSON: {error}", "check the file") from None
    except RecursionError:
        raise GrammarError("the schema is nested too deep", "use $ref for what repeats") from None
