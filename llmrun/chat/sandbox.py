"""Jinja as chat templates expect it, in a sandbox: templates come out of model files and are untrusted.

Knows nothing of messages or models.
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

MAX_SOURCE_BYTES = 256 * 1024


class RefusedByTemplate(Exception):
    """The template called `raise_exception`; the text is its own."""


def refuse(message: object = "") -> None:
    """The `raise_exception` of templates."""
    raise RefusedByTemplate(str(message))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`tojson` as transformers has it: jinja's own escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@cache
def environment() -> Any:
    """The jinja2 environment; made once, since jinja2 takes tens of milliseconds to import."""
    from jinja2.ext import Extension
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what is trained on; for a prompt it is plain text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> Node | list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = refuse
    return env


def date_formatter(now: datetime | None) -> Callable[[str], str]:
    """The `strftime_now` of templates."""
    return lambda form: (now or datetime.now()).strftime(form)
