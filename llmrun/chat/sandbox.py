"""Jinja as chat templates expect it, in a sandbox: templates come out of model files and are untrusted.

Jinja's immutable sandbox keeps a template from Python; on top of it every loop, call, filter, operator and
output is paid for out of a budget before it runs. Knows nothing of messages. Imports jinja2: import it late.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from string import Formatter
from threading import Lock
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace

from llmrun.chat import bounds
from llmrun.chat.budget import CALL_COST, Budget, LimitExceeded
from llmrun.chat.metering import COMPARED, CONCAT, SLICE, TOLL, metered

MAX_SOURCE_BYTES = 256 * 1024


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Filters that pass over their value without printing or comparing what it holds, then those that do.
SHALLOW_FILTERS = words("""
    attr count d default first items last length list map reject rejectattr reverse safe select selectattr
""")
DEEP_FILTERS = words("""
    abs capitalize center dictsort e escape float format groupby indent int join lower max min replace
    round sort string sum title tojson trim truncate unique upper wordcount
""")
STRING_METHODS = words("""
    capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit
    islower isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix
    replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title
    upper zfill
""")
METHODS: dict[type, frozenset[str]] = {
    str: STRING_METHODS,
    dict: words("copy get items keys values"),
    list: words("copy count index"),
    tuple: words("count index"),
    int: words(""),
    bool: words(""),
    float: words(""),
}
COMPARING_TESTS = words("in == eq equalto != ne > gt greaterthan ge >= < lt lessthan <= le")


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
    """`tojson` as transformers has it; jinja's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def date_formatter(now: datetime) -> Callable[[str], str]:
    """The `strftime_now` of templates."""

    def strftime_now(form: str) -> str:
        if len(form) > bounds.MAX_DATE_FORMAT:
            raise LimitExceeded("it asks for a date in a form longer than any date")
        return now.strftime(form)

    return strftime_now


class Opaque(Namespace):
    """A `namespace()` that does not print what it holds: that may be itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Generation(Extension):
    """`{% generation %}` marks what is trained on; in a prompt it is plain text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedFormatter(SandboxedFormatter):
    """`'{:>8}'.format(x)`, each field paid for."""

    def __init__(self, env: "Sandbox") -> None:
        super().__init__(env)
        self.budget = env.budget

    def format_field(self, value: Any, format_spec: str) -> str:
        for number in "".join(c if c.isdigit() else " " for c in format_spec).split():
            bounds.padding(int(number[:9]))
        self.budget.deep(value)
        return str(Formatter.format_field(self, value, format_spec))


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates. Whoever renders holds `lock` and sets `budget`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        self.lock = Lock()
        self.budget = Budget()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Nothing is computed while compiling: nobody would pay for a folded constant.
            optimized=False,
            finalize=pass_context(lambda _, value: self.paid(value)),
            extensions=["jinja2.ext.loopcontrols", Generation],
        )
        own = {**self.filters, "tojson": to_json}
        self.filters = {name: self.guarded(name, own[name], deep=False) for name in SHALLOW_FILTERS}
        self.filters |= {name: self.guarded(name, own[name], deep=True) for name in DEEP_FILTERS}
        self.filters |= {TOLL: self.toll, CONCAT: self.tilde, SLICE: self.cut, COMPARED: self.paid}
        tests: Any = self.tests  # jinja's own declaration says no more
        self.tests = {name: self.guarded(name, tests[name], name in COMPARING_TESTS) for name in tests}
        del self.globals["lipsum"]
        self.globals |= {"namespace": Opaque, "raise_exception": refuse}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Jinja's hook between parsing and compiling."""
        metered(source).set_environment(self)
        return super()._generate(source, *args, **kwargs)

    def toll(self, cost: int) -> None:
        """Of one pass through a body. A template may call this too, by `map('toll!')`: it gains nothing."""
        self.budget.charge(CALL_COST + (cost if isinstance(cost, int) else 0))

    def paid(self, value: Any) -> Any:
        """`value`, about to be printed or compared."""
        self.budget.deep(value)
        return value

    def tilde(self, *values: Any) -> str:
        bounds.check_concat(self.budget, values)
        return "".join(map(str, values))

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return self.budget.made(value[start:stop:step])

    def guarded(self, name: str, operation: Callable[..., Any], deep: bool) -> Callable[..., Any]:
        """`operation`, a filter or test, paid for before it runs and for what it makes."""
        check = bounds.FILTER_CHECKS.get(name)
        first = 1 if hasattr(operation, "jinja_pass_arg") else 0

        def paying(*args: Any, **kwargs: Any) -> Any:
            self.budget.charge(CALL_COST)
            if deep:
                args = held(args)
                self.budget.deep(*args[first:], kwargs)
            else:
                self.budget.shallow(*args[first : first + 1])
            if check:
                check(self.budget, *args[first:], **kwargs)
            return self.result(operation(*args, **kwargs))

        paying.__dict__.update(getattr(operation, "__dict__", {}))
        return paying

    def result(self, value: Any) -> Any:
        return self.counted(value) if isinstance(value, Iterator) else self.budget.made(value)

    def counted(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.charge(CALL_COST)
            yield value

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.charge(CALL_COST)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, (str, list, tuple)):
            args = held(args)
            self.budget.deep(owner)
            if check := bounds.METHOD_CHECKS.get(obj.__name__):
                check(self.budget, owner, *args)
        if not isinstance(obj, Macro):
            self.budget.deep(*args, *(kwargs[name] for name in kwargs if name not in JINJAS_OWN))
        return self.result(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        bounds.check_operator(self.budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, (str, int)):
            self.budget.deep(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        methods = METHODS.get(type(obj))
        if methods is not None:
            return attr in methods
        if type(obj) is Opaque:  # asking what else it is runs Python code of its own, for each attribute
            return not attr.startswith("_")
        if isinstance(obj, str):
            return attr in STRING_METHODS
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, with each field paid for. Jinja asks this of every attribute it reads."""
        owner = getattr(value, "__self__", None)
        if not isinstance(owner, str) or value.__name__ != "format":
            return None
        return lambda *args, **kwargs: BoundedFormatter(self).vformat(str(owner), args, kwargs)


JINJAS_OWN = frozenset({"_loop_vars", "_block_vars", "caller"})


def held(values: Iterable[Any]) -> tuple[Any, ...]:
    """`values` with lists in place of iterators, so that they can be looked at and then used."""
    return tuple(list(value) if isinstance(value, Iterator) else value for value in values)


@cache
def environment() -> Sandbox:
    return Sandbox()


def render(program: Template, variables: Mapping[str, Any], now: datetime, budget: Budget) -> str:
    """The text `program` makes; `now` is its clock. Raises whatever goes wrong in it."""
    env = environment()
    with env.lock:
        env.budget = budget
        return str(program.render(variables, strftime_now=date_formatter(now)))


def variables_of(source: str) -> set[str]:
    """Names in a template that are not attributes: its variables, and some words of the language."""
    names = set()
    before = ""
    for _, kind, text in environment().lex(source):
        if kind == "name" and before != ".":
            names.add(text)
        if kind != "whitespace":
            before = text
    return names


def line_of(error: Exception) -> str:
    """Where in the template `error` came up, as ", line 3"; nothing where that is not known."""
    line = ""
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return line
