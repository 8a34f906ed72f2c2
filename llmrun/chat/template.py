"""A model's chat template: messages in, the prompt's text out, in segments.

Only the template's own text may form control tokens. Knows nothing of token ids; the caller says which texts
are control tokens and tokenizes each segment.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from llmrun.chat import sandbox
from llmrun.chat.conversation import Message
from llmrun.errors import TemplateError, TemplateRefusedError

RAW_HINT = "give another template with --template NAME|FILE, or send the prompt as it is with --raw"


@dataclass(frozen=True)
class Segment:
    """A stretch of the prompt. Texts of control tokens in it are control tokens only if `parse_special`."""

    text: str
    parse_special: bool


@dataclass(frozen=True)
class Rendered:
    """A prompt. One segment unless a message holds the text of a control token."""

    segments: tuple[Segment, ...]
    notes: tuple[str, ...]
    starts_with_bos: bool  # the text brings the BOS itself: the tokenizer must not add another

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True)
class Template:
    """A compiled chat template. `name` is what errors call it."""

    name: str
    program: Any

    @classmethod
    def compile(cls, source: str, *, name: str) -> "Template":
        """Raises TemplateError, with the line, for a syntax error, and for a source beyond 256 KB."""
        from jinja2 import TemplateSyntaxError

        if len(source.encode("utf-8", "replace")) > sandbox.MAX_SOURCE_BYTES:
            raise TemplateError(f"{name} is larger than 256 KB, the limit for a template", RAW_HINT)
        try:
            return cls(name, sandbox.environment().from_string(source))
        except TemplateSyntaxError as error:
            raise TemplateError(f"{name}, line {error.lineno}: {error.message}", RAW_HINT) from error
        except Exception as error:
            raise TemplateError(f"{name} does not compile: {error}", RAW_HINT) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        bos_token: str,
        eos_token: str,
        control_tokens: Collection[str] = (),
        add_generation_prompt: bool = True,
        prefix: str | None = None,
        enable_thinking: bool | None = None,
        extra: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> Rendered:
        """The prompt for the assistant's next answer, which begins with `prefix`.

        `extra` are variables of the template (reasoning_effort, ...); `now` is its clock.
        Raises TemplateRefusedError where the template refuses the messages in every form that keeps their
        text, TemplateError where it fails or exceeds its limits.
        """
        variables: dict[str, Any] = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            "strftime_now": sandbox.date_formatter(now),
            **(extra or {}),
        }
        if enable_thinking is not None:
            variables["enable_thinking"] = variables["thinking"] = enable_thinking
        guard = Guard.over(messages, control_tokens)
        text, notes = self._accepted([guard.hide(message) for message in messages], variables)
        return Rendered(guard.segments(text + guard.hidden(prefix or "")), notes, text.startswith(bos_token or "\0"))

    def _accepted(self, messages: list[Message], variables: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        """The first form of the messages that the template takes, and what was changed for it."""
        for form, notes in forms(messages):
            try:
                return self._text(form, variables), notes
            except sandbox.RefusedByTemplate as error:
                refusal = str(error)
        raise TemplateRefusedError(f"{self.name} refuses these messages: {refusal}", RAW_HINT)

    def _text(self, messages: Iterable[Message], variables: dict[str, Any]) -> str:
        try:
            return str(self.program.render(messages=[as_variables(m) for m in messages], **variables))
        except sandbox.RefusedByTemplate:
            raise
        except Exception as error:
            raise TemplateError(f"{self.name} fails: {error}", RAW_HINT) from error


def as_variables(message: Message) -> dict[str, str]:
    values = {"role": message.role, "content": message.content}
    if message.reasoning:
        values["reasoning_content"] = message.reasoning
    return values


def forms(messages: list[Message]) -> Iterable[tuple[list[Message], tuple[str, ...]]]:
    """The messages as they are, then in the forms that stricter templates take."""
    yield messages, ()
    joined = join_neighbours(messages)
    note_joined = "the template refuses two turns of one role in a row: they were joined"
    if len(joined) < len(messages):
        yield joined, (note_joined,)
    if messages and messages[0].role == "system":
        note_merged = "the template refuses a system message: it was put before the first user message"
        merged = join_neighbours([replace(messages[0], role="user"), *messages[1:]])
        yield merged, (note_merged,)


def join_neighbours(messages: Iterable[Message]) -> list[Message]:
    """Turns of one role that follow each other become one, a blank line between them."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            joined[-1] = replace(
                message,
                content=f"{joined[-1].content}\n\n{message.content}",
                reasoning=message.reasoning or joined[-1].reasoning,
            )
        else:
            joined.append(message)
    return joined


PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0xE000, 0xF900), range(0x100000, 0x10FFFE))


@dataclass(frozen=True)
class Guard:
    """Keeps the texts of control tokens inside messages from becoming control tokens.

    Each is one unused private-use character while the template runs, so that trimming, splitting and case
    changes leave it whole.
    """

    pattern: re.Pattern[str] | None
    stand_ins: Mapping[str, str]  # text of a control token -> its character

    @classmethod
    def over(cls, messages: Sequence[Message], control_tokens: Collection[str]) -> "Guard":
        texts = [part for m in messages for part in (m.content, m.reasoning)]
        known = sorted((token for token in control_tokens if token), key=len, reverse=True)
        if not known:
            return cls(None, {})
        pattern = re.compile("|".join(map(re.escape, known)))
        taken = set(chain.from_iterable(texts))
        free = (chr(code) for codes in PRIVATE_USE for code in codes if chr(code) not in taken)
        return cls(pattern, dict(zip(known, free, strict=False)))

    def hidden(self, text: str) -> str:
        return self.pattern.sub(lambda match: self.stand_ins[match[0]], text) if self.pattern else text

    def hide(self, message: Message) -> Message:
        return replace(message, content=self.hidden(message.content), reasoning=self.hidden(message.reasoning))

    def segments(self, text: str) -> tuple[Segment, ...]:
        """`text` cut at the template's own control tokens; a stretch that holds a stand-in is plain text."""
        originals = {ord(char): token for token, char in self.stand_ins.items()}
        if self.pattern is None or not any(char in text for char in self.stand_ins.values()):
            return (Segment(text, True),)
        parts: list[Segment] = []
        for piece in re.split(f"((?:{self.pattern.pattern})+)", text):
            plain = piece.translate(originals)
            special = plain == piece
            if special and parts and parts[-1].parse_special:
                parts[-1] = Segment(parts[-1].text + piece, True)
            elif plain:
                parts.append(Segment(plain, special))
        return tuple(parts)


def pick(templates: Mapping[str, str], wanted: str | None = None) -> tuple[str, str] | None:
    """(name, source) of the template to use: `wanted`, else the model's default one; None if it has none.

    `templates` are the model's own by name, the default one under "default".
    """
    if wanted is None:
        return ("the model's template", templates["default"]) if "default" in templates else None
    if wanted in templates:
        return f"the model's template {wanted}", templates[wanted]
    path = Path(wanted)
    if not path.is_file():
        raise TemplateError(f"no template {wanted}: neither a name nor a file")
    return wanted, path.read_text(encoding="utf-8")
