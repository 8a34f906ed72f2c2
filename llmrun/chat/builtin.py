"""Which template to use: one of the model's own, one of ours, or a file. Knows nothing of jinja."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from llmrun.errors import TemplateError, UsageError

MAX_FILE_BYTES = 256 * 1024 + 1  # one more than a template may have: the compiler's refusal is the clear one


class Choice(NamedTuple):
    """A template before it is compiled.

    `stop` are strings that end an answer in it: the model's vocabulary may not have them as control tokens.
    """

    name: str
    source: str
    stop: tuple[str, ...] = ()


CHATML = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

LLAMA2 = """
{%- if messages[0].role == 'system' -%}
    {%- set system = '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('user and assistant must alternate') -}}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        {{- bos_token ~ '[INST] ' ~ (system if loop.first else '') ~ message.content ~ ' [/INST]' -}}
    {%- else -%}
        {{- ' ' ~ message.content ~ ' ' ~ eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

LLAMA3 = """
{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n' ~ message.content ~ '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
"""

GEMMA = """
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
    {{- raise_exception('no system role') -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set role = 'model' if message.role == 'assistant' else 'user' -%}
    {{- '<start_of_turn>' ~ role ~ '\\n' ~ message.content ~ '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
"""

MISTRAL = """
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- raise_exception('no system role') -}}
    {%- elif message.role == 'user' -%}
        {{- '[INST] ' ~ message.content ~ '[/INST]' -}}
    {%- else -%}
        {{- ' ' ~ message.content ~ eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

PHI3 = """
{%- for message in messages -%}
    {{- '<|' ~ message.role ~ '|>\\n' ~ message.content ~ '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>\\n' -}}
{%- endif -%}
"""

PLAIN = """
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- message.content ~ '\\n\\n' -}}
    {%- else -%}
        {{- message.role | upper ~ ': ' ~ message.content ~ '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'ASSISTANT:' -}}
{%- endif -%}
"""

BUILTIN: Mapping[str, Choice] = {
    choice.name: choice
    for choice in (
        Choice("chatml", CHATML, ("<|im_end|>",)),
        Choice("gemma", GEMMA, ("<end_of_turn>",)),
        Choice("llama2", LLAMA2),
        Choice("llama3", LLAMA3, ("<|eot_id|>",)),
        Choice("mistral", MISTRAL),
        Choice("phi3", PHI3, ("<|end|>",)),
        Choice("plain", PLAIN, ("\nUSER:",)),
    )
}


def pick(templates: Mapping[str, str], wanted: str | None = None) -> Choice | None:
    """The template to use: `wanted` (a name or a file), else the model's default; None where it has none.

    `templates` are the model's own by name, its default under "default". Raises UsageError for a name that is
    none, TemplateError for a file that cannot be read.
    """
    if wanted is None:
        return Choice("the model's template", templates["default"]) if "default" in templates else None
    if wanted in templates:
        return Choice(f"the model's template {wanted!r}", templates[wanted])
    if wanted in BUILTIN:
        return BUILTIN[wanted]
    path = Path(wanted).expanduser()
    if not path.is_file():
        names = ", ".join([*templates, *BUILTIN])
        raise UsageError(f"--template {wanted}: neither a template's name nor a file", f"names: {names}")
    return Choice(wanted, read_template(path))


def read_template(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise TemplateError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path} is not UTF-8 text: byte {error.start}", "save it as UTF-8") from error
