"""The language that templates are written in, checked against plain jinja2; and what they must not do."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmrun.chat.conversation import Message
from llmrun.chat.template import Template
from llmrun.errors import TemplateError

NOW = datetime(2026, 3, 14, 15, 9, 26)
MESSAGES = [
    Message("system", "Be brief, été 夏.  "),
    Message("user", " What is 2 + 2?\n\n<b>Now</b> "),
    Message("assistant", "<think>two</think>\nIt is 4.", "two"),
    Message("user", "And 3 + 3?"),
]
# One small template for each kind of thing that the templates of real models do.
KINDS = {
    "blocks and whitespace": (
        "  {% for m in messages %}\n    {{- m.role }}\n  {% if loop.first -%}\n first\n  {%- endif %}\n\n"
        "  {# note #}\n {{ m['content'] | trim }}\n{% endfor %}\n\n"
    ),
    "loop controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}"
        "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
    ),
    "loop variables": (
        "{% for m in messages %}{{ loop.index0 }}/{{ loop.length }}"
        "{{ loop.previtem.role if not loop.first }}{% if loop.nextitem %}{{ loop.nextitem.role }}{% endif %}"
        "{{ loop.last }}{{ loop.changed(m.role) }}{{ loop.revindex }}{{ loop.cycle('a', 'b') }};{% endfor %}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(found=false, text='') %}{% for m in messages[::-1] %}"
        "{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{% set ns.text = m.content %}{% endif %}"
        "{% endfor %}{{ ns.text }}{{ ns.found }}"
    ),
    "slices and indexes": (
        "{{ messages[-1].content }}{{ messages[1:] | length }}{{ messages[:-1] | map(attribute='role') | join(',') }}"
        "{{ messages[1].content[2:6] }}{{ 'abcdef'[::-1] }}{{ 'abcdef'[-3:-1] }}{{ (1, 2, 3)[1:] }}"
    ),
    "macros": (
        "{% macro turn(m, end='|', upper=true) %}{{ m.role | upper if upper else m.role }}: {{ m.content }}{{ end }}"
        "{{ caller() if caller }}{% endmacro %}{% for m in messages %}{{ turn(m, upper=loop.first) }}{% endfor %}"
        "{% call turn(messages[0], end='.') %}called{% endcall %}"
    ),
    "recursive macro": (
        "{% macro tree(x) %}{% if x is mapping %}{% for k, v in x.items() %}{{ k }}({{ tree(v) }}){% endfor %}"
        "{% elif x is iterable and x is not string %}{% for v in x %}[{{ tree(v) }}]{% endfor %}"
        "{% else %}{{ x }}{% endif %}{% endmacro %}{{ tree({'a': [1, {'b': 'c'}], 'd': none}) }}"
    ),
    "recursive loop": (
        "{% for x in [[1, [2, 3]], 4] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.depth }}{% endfor %}"
    ),
    "tojson": (
        "{{ messages | tojson }}{{ {'b': [1, none, true], 'a': 'é<&'} | tojson(indent=2) }}"
        "{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}"
    ),
    "dates": "{{ strftime_now('%d %b %Y') }}{% if strftime_now is defined %}!{% endif %}",
    "text methods": (
        "{% for m in messages %}{{ m.content.strip() }}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
        "{{ m.content.startswith(' What') }}{{ m.content.replace('2', 'two', 1) }}{{ m.content.upper() }}"
        "{{ m.content.rstrip().endswith('.') }}{{ m.content.find('4') }}{{ m.role.title() }}"
        "{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a,b'.partition(',') }}{{ '|'.join(['x', 'y']) }}{% endfor %}"
    ),
    "formats": (
        "{{ '%s-%05.1f-%%' % ('a', 2.5) }}{{ '{}:{:>5}:{x!r:.2}'.format(1, 'b', x='long') }}{{ '%s!' | format('c') }}"
        "{{ '%(a)s' % {'a': 1} }}{{ 'x' ~ 1 ~ none ~ [2] }}{{ 'ab' * 3 }}{{ [1] + [2] }}{{ 7 // 2 }}{{ 2 ** 10 }}"
    ),
    "filters": (
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
        "{{ messages | rejectattr('role', 'in', ['user']) | list | length }}{{ [3, 1, 2] | sort | join('-') }}"
        "{{ {'b': 1, 'a': 2} | dictsort }}{{ {'a': 1} | items | list }}{{ 'a b' | title }}{{ 'x\ny' | indent(2) }}"
        "{{ [1, 2, 2] | unique | list }}{{ [1, 2] | sum }}{{ '  t ' | trim }}{{ none | default('d', true) }}"
        "{{ messages | groupby('role') | map('first') | list }}{{ 2.567 | round(1) }}{{ '7' | int + 1 }}"
        "{{ '<a>' | escape }}{{ 'abc' | first }}{{ [1, 2] | last }}{{ 'abc' | reverse }}"
        "{{ [1, none] | select | list }}{{ 'abcdefghij' | truncate(6) }}{{ [1, 5] | max }}{{ -3 | abs }}"
        "{{ 'a' | center(5) }}{{ 'A b' | wordcount }}"
    ),
    "tests": (
        "{{ messages is iterable }}{{ messages[0] is mapping }}{{ 'x' is string }}{{ nothing is defined }}"
        "{{ 3 is odd }}{{ none is none }}{{ 1 is number }}{{ messages is sequence }}{{ true is boolean }}"
        "{{ 'a' in 'cat' }}{{ 'role' in messages[0] }}{{ 2 not in [1] }}{{ 1 < 2 < 3 }}{{ 'a' is in ['a'] }}"
        "{{ messages[0].tool_calls is defined and messages[0].tool_calls }}{{ 4 is divisibleby 2 }}"
    ),
    "set blocks": (
        "{% set text %}{% for m in messages %}{{ m.role }} {% endfor %}{% endset %}{{ text | upper | trim }}"
        "{% set shout | upper %}abc{% endset %}{{ shout }}{% filter replace('a', 'o') %}banana{% endfilter %}"
        "{% with x = 1, y = 2 %}{{ x + y }}{% endwith %}"
    ),
    "missing things": (
        "{{ messages[0].nothing }}{{ messages[0].get('nothing', 'none here') }}{{ messages[0]['role'] }}"
        "{{ nothing }}{{ tools is none }}{% if tools %}tools{% endif %}{{ (documents or []) | length }}"
    ),
    "literals": "{{ {'a': {'b': (1, 2)}}['a'].b[1] }}{{ [1, 'two', none, true, 1.5] }}{{ {1: 2, 'x': [3]} }}{{ -1 }}",
    "unpacking": "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% set c, d = 5, 6 %}{{ d }}",
    "filtered loop": (
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% else %}-{% endfor %}"
        "{% for m in [] %}{{ m }}{% else %}none{% endfor %}"
    ),
    "inline if": "{{ 'a' if messages | length > 9 }}{{ 'b' if messages[0].role == 'system' else 'c' }}",
    "raw": "{% raw %}{{ not this }}{% endraw %}{{ '{{' }}",
    "blocks": "{% block head %}head {{ messages[0].role }}{% endblock %}{{ self.head() }}",
}  # fmt: skip


class Generation(Extension):
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def plain_jinja(source: str) -> str:
    """As transformers sets jinja2 up (transformers/utils/chat_template_utils.py)."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )

    def to_json(x: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, **options)

    env.filters["tojson"] = to_json
    messages = [{"role": m.role, "content": m.content} for m in MESSAGES]
    for message in messages:
        if message["role"] == "assistant":
            message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "two")
    return env.from_string(source).render(
        messages=messages, tools=None, documents=None, bos_token="<s>", eos_token="</s>", strftime_now=NOW.strftime
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_language_is_that_of_transformers(kind: str):
    # Every message is printed at the end, so that none counts as left out.
    source = KINDS[kind] + "{% for m in messages %}{{ m.content }}{% endfor %}"
    prompt = Template.compile(source, name="it").render(MESSAGES, bos_token="<s>", eos_token="</s>", now=NOW)
    assert prompt.text == plain_jinja(source)
    assert prompt.notes == ()


# -- hostile templates (SEC-01)


def twice(variable: str) -> str:
    return f"{{% for i in range(60) %}}{{% set ns.{variable} = [ns.{variable}, ns.{variable}] %}}{{% endfor %}}"


def grown(variable: str, n: int) -> str:
    return f"{{% for i in range({n}) %}}{{% set ns.{variable} = (ns.{variable},) %}}{{% endfor %}}"


NS = "{% set ns = namespace(a=[1], b=[1], t=(1,), s='a') %}"
ESCAPES = [
    "{{ ().__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch MARKER').read() }}",
    "{{ namespace.__init__.__globals__['os'] }}",
    "{{ raise_exception.__globals__.os.system('touch MARKER') }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
    "{{ (messages | attr('__class__')).__mro__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
]
LOOPS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x",
    "{% for x in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set r = range(99999) %}" + "{% set r = r | select | list %}{{ r | map('string') | join }}" * 300,
    "{% for i in range(99999) %}{% if 'b' * 9999 in 'a' * 99999 %}{% endif %}{% endfor %}",
    "{{ ('a' * 1000000).strip('b' * 1000000) }}",
    "{{ ('a' * 9000000).rfind('b' ~ 'a' * 4000000) }}",
    "{{ ('a b ' * 6000000) | unique | list | length }}",
    "{% for i in range(99999) %}" + "{% set x = [" + "1," * 5000 + "] %}{% endfor %}",
]
FREE = "{{ [-10**18] | map('toll!') | list }}{{ ['nan' | float] | map('toll!') | list }}"
LOOPS += [FREE + LOOPS[0]]
GROWTH = [
    "{{ 'A' * 10**10 }}",
    "{{ 9**(9**9) }}",
    "{{ [0] * 10**9 }}",
    NS + "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    NS + "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    NS + "{% for i in range(99999) %}{% set ns.a = [ns.a, 'A' * 1000000 ~ i] %}{% endfor %}",
    NS + twice("a") + "{{ ns.a }}",
    NS + twice("a") + "{{ ns.a | tojson }}",
    NS + twice("a") + "{{ ns.a ~ '' }}{{ '%s' % ns.a }}",
    NS + twice("a") + twice("b") + "{{ ns.a == ns.b }}",
    NS + twice("a") + twice("b") + "{{ [ns.a].count(ns.b) }}",
    NS + twice("a") + twice("b") + "{{ [ns.a, ns.b] | sort }}",
    NS + twice("a").replace("[ns", "(ns").replace("a]", "a)") + "{{ {ns.a: 1} }}",
    NS + grown("t", 99999) + "{{ {}[ns.t] }}",
    NS + grown("t", 99999) + "{{ ns.t in {} }}",
    NS + grown("t", 99999) + "{{ ns.t }}",
    "{% for i in range(99999) %}" + "A" * 200_000 + "{% endfor %}",
    "{% macro m() %}" + "A" * 200_000 + "{% endmacro %}{% for i in range(99999) %}{{ m() }}{% endfor %}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.ljust(10**9) }}{{ 'a'.rjust(10**9) }}{{ 'a'.zfill(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%(a(b)c)1000000000d' % {'a(b)c': 1} }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%.1000000000f' | format(1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**9) }}",
    "{{ '{:\u0661\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660}'.format(1) }}",
    "{{ 'a\nb' | indent(10**9) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "{{ ('a' * 1000000) | join('b' * 1000000) }}",
    "{{ ('b' * 1000000).join('a' * 1000000) }}",
    "{{ 1.5 | round(10**9, 'ceil') }}{{ 5 | round(-10**9) }}",
    "{{ [1] | tojson(indent=10**9) }}",
    "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
    "{{ range(10**9) | list }}",
    "{{ (1).to_bytes(10**9) }}",
    "{{ 'a'.translate({97: 'b' * 1000000}) }}",
    "{{ lipsum(n=1000000) }}",
    "{{ strftime_now('%Y' * 1000000) }}",
]
COMPILING = [
    "{{ x" + ".a" * 60_000 + " }}",
    "{{ 1" + " + 1" * 30_000 + " }}",
    "{{ " + "(" * 50_000 + " }}",
    "{% if x %}" * 9_000 + "{% endif %}" * 9_000,
    "{% if x %}" + "{% elif y %}" * 20_000 + "{% endif %}",
    "{% for i in x %}" * 60 + "{% endfor %}" * 60,
    "".join(f"{{% set v{n} = 1 %}}" for n in range(6_000)) + "{% if 1 %}{% set z = 1 %}{% endif %}" * 3_000,
]
HOSTILE = {"escapes": ESCAPES, "loops": LOOPS, "growth": GROWTH, "compiling": COMPILING}
CHILD = """
import json, sys, time
import psutil
from llmrun.chat.conversation import Message
from llmrun.chat.template import Template
from llmrun.errors import TemplateError
from llmrun.machine.memory import peak_rss_bytes

for source in json.load(sys.stdin):
    start = time.process_time()
    try:
        prompt = Template.compile(source, name="it").render([Message("user", "Hi")], bos_token="", eos_token="")
        answer = f"printed {prompt.text[:60]!r}"
    except TemplateError as error:
        answer = f"refused: {error.message}"
    print(json.dumps([answer, time.process_time() - start, peak_rss_bytes()]))
"""


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_templates_are_refused_in_one_line_sec_01(kind: str, tmp_path: Path):
    """In a process of their own: what fails here would hang, or take all memory."""
    marker = tmp_path / "pwned"
    sources = [source.replace("MARKER", str(marker)) for source in HOSTILE[kind]]
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(sources),
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    outcomes = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(outcomes) == len(sources)
    for source, (answer, seconds, peak) in zip(sources, outcomes, strict=True):
        assert answer.startswith("refused: it"), (source[:200], answer)
        assert "\n" not in answer
        assert seconds < 30, source[:200]
        assert peak < 700_000_000, source[:200]
    assert not marker.exists()


def test_a_long_conversation_allows_more_work_than_a_short_one():
    """A template that looks back over all turns at each turn, as some do, takes hundreds of them."""
    source = (
        "{% set ns = namespace(out='', n=0) %}{% for m in messages %}{% for other in messages %}"
        "{% set ns.n = ns.n + 1 %}{% endfor %}{% set ns.out = ns.out ~ m.content %}{% endfor %}{{ ns.n }}{{ ns.out }}"
    )
    template = Template.compile(source, name="it")
    messages = [Message("user", "word " * 20)] * 400
    assert template.render(messages, bos_token="", eos_token="").text.startswith("160000word")
    hostile = Template.compile(source.replace("in messages", "in range(99999)"), name="it")
    with pytest.raises(TemplateError, match="too long"):
        hostile.render(messages[:1], bos_token="", eos_token="")


def test_long_messages_are_no_reason_to_refuse():
    source = "{% for m in messages %}{{ m.content.split('X')[0] | trim | replace('a', 'b') }}{% endfor %}"
    content = "word " * 400_000
    prompt = Template.compile(source, name="it").render([Message("user", content)], bos_token="", eos_token="")
    assert prompt.text == content.strip()


def test_a_refusal_leaves_nothing_behind_for_the_next_template():
    loop = Template.compile(LOOPS[0], name="it")
    good = Template.compile("{{ messages[0].content }}", name="it")
    for _ in range(2):
        with pytest.raises(TemplateError):
            loop.render([Message("user", "Hi")], bos_token="", eos_token="")
        assert good.render([Message("user", "Hi")], bos_token="", eos_token="").text == "Hi"
