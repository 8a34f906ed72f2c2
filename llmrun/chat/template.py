"""A model's chat template: messages in, the prompt's text out.

Knows nothing of token ids: the caller says which texts are control tokens, and tokenizes each segment.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from llmrun.chat.conversation import Message, Role
from llmrun.chat.guard import Guard, Segment, unused_characters
from llmrun.errors import TemplateError, TemplateRefusedError

HINT = "use another template with --template NAME|FILE, or send the prompt as it is with --raw"
JOINED = "the template takes no two turns of one role in a row: they were joined"
MERGED = "the template takes no system message: it was put before the first user message"
THINKING_SWITCHES = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class Rendered:
    """A prompt: one segment, unless a message holds the text of a control token."""

    segments: tuple[Segment, ...]
    notes: tuple[str, ...]
    starts_with_bos: bool  # the template wrote the BOS itself: the tokenizer adds none

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True)
class Form:
    """The messages in one of the shapes that templates take, and what was changed to get there."""

    messages: tuple[Message, ...]
    notes: tuple[str, ...] = ()
    typed: bool = False  # content as a list of parts, as templates of models for images want it

    def variables(self) -> list[dict[str, Any]]:
        return [as_variables(message, self.typed) for message in self.messages]


@dataclass(frozen=True)
class Template:
    """A compiled chat template. `name` is what errors call it."""

    name: str
    source: str
    program: Any

    @classmethod
    def compile(cls, source: str, *, name: str) -> "Template":
        """Raises TemplateError: for a syntax error, with its line, and for a source that is too large."""
        from jinja2 import TemplateSyntaxError

        from llmrun.chat import sandbox

        if len(source.encode("utf-8", "replace")) > sandbox.MAX_SOURCE_BYTES:
            raise TemplateError(f"{name} is larger than 256 KB, the limit for a template", HINT)
        try:
            return cls(name, source, sandbox.environment().from_string(source))
        except TemplateSyntaxError as error:
            raise TemplateError(f"{name}, line {error.lineno}: {error.message}", HINT) from error
        except Exception as error:
            raise TemplateError(f"{name} does not compile: {one_line(error)}", HINT) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        bos_token: str,
        eos_token: str,
        control_tokens: Collection[str] = (),
        add_generation_prompt: bool = True,
        prefix: str = "",
        enable_thinking: bool | None = None,
        extra: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> Rendered:
        """The prompt for an answer that begins with `prefix`.

        `extra` are variables of the template (reasoning_effort, ...), `now` stands in for its clock. Raises
        TemplateRefusedError where the template refuses the messages in every form that keeps their text, and
        TemplateError where it fails or exceeds its limits.
        """
        texts = [part for m in messages for part in (m.content, m.reasoning)] + [prefix]
        free = unused_characters([self.source, *texts, *control_tokens])
        guard = Guard.over(texts, control_tokens, free)
        hidden = [
            replace(m, content=guard.hide(m.content), reasoning=guard.hide(m.reasoning)) for m in messages
        ]
        variables = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **(extra or {}),
        }
        notes: tuple[str, ...] = ()
        if enable_thinking is not None:
            variables |= dict.fromkeys(THINKING_SWITCHES, enable_thinking)
            if not any(switch in self.source for switch in THINKING_SWITCHES):
                notes = ("the template has no switch for reasoning: the model decides",)
        job = Rendering(self, variables, free, now)
        text, changes = job.with_prefix(hidden, guard.hide(prefix)) if prefix else job.accepted(hidden)
        return Rendered(guard.segments(text), notes + changes, bool(bos_token) and text.startswith(bos_token))


@dataclass(frozen=True)
class Rendering:
    """One rendering of a template, in as many attempts as it takes."""

    template: Template
    variables: Mapping[str, Any]
    free: Iterator[str]  # characters that occur nowhere
    now: datetime | None

    def accepted(self, messages: Sequence[Message]) -> tuple[str, tuple[str, ...]]:
        """The text of the first form that the template takes and prints in full, and notes on it."""
        from llmrun.chat.sandbox import RefusedByTemplate

        refusal = ""
        partial: tuple[str, tuple[str, ...]] | None = None
        for form in forms(messages):
            try:
                text = self.text(form)
            except RefusedByTemplate as error:
                refusal = one_line(error)
                continue
            lost = self.lost(form, text)
            if not lost:
                return text, form.notes
            left_out = tuple(f"the template leaves out the {role} message" for role in lost)
            partial = partial or (text, form.notes + left_out)
        if partial:
            return partial
        raise TemplateRefusedError(f"{self.template.name} refuses the messages: {refusal}", HINT)

    def with_prefix(self, messages: Sequence[Message], prefix: str) -> tuple[str, tuple[str, ...]]:
        """A prompt that ends within the assistant's turn, right after `prefix`.

        The turn is rendered as a finished one and cut, so that a template that opens with reasoning, or names
        a channel, does here what it does before an answer.
        """
        end = next(self.free)
        turn = Message("assistant", prefix + end)
        try:
            closed = replace(self, variables={**self.variables, "add_generation_prompt": False})
            text, notes = closed.accepted([*messages, turn])
        except TemplateError:
            text, notes = "", ()
        if prefix + end in text:
            return text[: text.rindex(end)], notes
        text, notes = self.accepted(messages)
        return text + prefix, notes

    def text(self, form: Form) -> str:
        """Raises RefusedByTemplate where the template calls raise_exception, TemplateError where it fails."""
        from llmrun.chat import sandbox

        try:
            return sandbox.render(self.template.program, form.variables(), self.variables, self.now)
        except sandbox.RefusedByTemplate:
            raise
        except Exception as error:
            where = f"{self.template.name}{sandbox.line_of(error)}"
            raise TemplateError(f"{where}: {one_line(error)}", HINT) from error

    def lost(self, form: Form, text: str) -> list[Role]:
        """Roles whose message the template does not print. One that changes the message's text prints it."""
        return [
            message.role
            for index, message in enumerate(form.messages)
            if message.role != "assistant"
            and message.content.strip() not in text
            and not self.prints(form, index)
        ]

    def prints(self, form: Form, index: int) -> bool:
        mark = next(self.free)
        messages = list(form.messages)
        messages[index] = replace(messages[index], content=mark)
        try:
            return mark in self.text(replace(form, messages=tuple(messages)))
        except Exception:
            return True  # it looks into the text, so it is not ignored


def forms(messages: Sequence[Message]) -> Iterator[Form]:
    """The messages as they are, then the forms that stricter templates take; each keeps all text."""
    shapes = [Form(tuple(messages))]
    joined = join_neighbours(messages)
    notes = (JOINED,) if len(joined) < len(messages) else ()
    if notes:
        shapes.append(Form(joined, notes))
    if len(messages) > 1 and messages[0].role == "system":
        merged = join_neighbours([replace(messages[0], role="user"), *messages[1:]])
        shapes.append(Form(merged, (MERGED, *notes)))
    yield from shapes
    yield from (replace(form, typed=True) for form in shapes)


def join_neighbours(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Turns of one role that follow each other as one, a blank line between them."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            content = f"{joined[-1].content}\n\n{message.content}"
            reasoning = message.reasoning or joined[-1].reasoning
            joined[-1] = replace(message, content=content, reasoning=reasoning)
        else:
            joined.append(message)
    return tuple(joined)


def as_variables(message: Message, typed: bool) -> dict[str, Any]:
    content = [{"type": "text", "text": message.content}] if typed else message.content
    values: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        values["reasoning_content"] = message.reasoning
    return values


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
