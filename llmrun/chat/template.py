"""A model's chat template: messages in, the prompt's text out.

Knows nothing of token ids: the caller says which texts are control tokens, and tokenizes each segment.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from llmrun.chat.budget import Budget
from llmrun.chat.conversation import Message, Role
from llmrun.chat.guard import Guard, Segment, unused_characters
from llmrun.errors import TemplateError, TemplateRefusedError

HINT = "use another template with --template NAME|FILE, or send the prompt as it is with --raw"
JOINED = "the template takes no two turns of one role in a row: they were joined"
MERGED = "the template takes no system message: it was put before the first user message"
NO_TOOLS = "the template asks for tools and documents: it was given none"
NO_SWITCH = "the template has no switch for reasoning: the model decides"
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
THINKING_SWITCHES = ("enable_thinking", "thinking")


class Rendered(NamedTuple):
    """A prompt: one segment, unless a message holds the text of a control token."""

    segments: tuple[Segment, ...]
    notes: tuple[str, ...]
    starts_with_bos: bool  # the template wrote the BOS itself: the tokenizer adds none

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


class Form(NamedTuple):
    """The messages in one of the shapes that templates take, and what was changed to get there."""

    messages: tuple[Message, ...]
    notes: tuple[str, ...] = ()
    typed: bool = False  # content as a list of parts, as templates of models for images want it

    def variables(self) -> list[dict[str, Any]]:
        return [as_variables(message, self.typed) for message in self.messages]


class Template(NamedTuple):
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
        tokens = {*control_tokens, bos_token, eos_token}
        free = unused_characters([self.source, *texts, *tokens])
        guard = Guard.over(texts, tokens, free)
        hidden = [m._replace(content=guard.hide(m.content), reasoning=guard.hide(m.reasoning)) for m in messages]
        variables: dict[str, Any] = {
            "bos_token": bos_token,
            "eos_token": eos_token,
            "add_generation_prompt": add_generation_prompt,
        }
        if enable_thinking is not None:
            variables |= dict.fromkeys(THINKING_SWITCHES, enable_thinking)
        variables |= extra or {}
        budget = Budget([texts, variables], len(messages))
        attempt = Attempt(self, variables, free, now or datetime.now(), budget)
        text, notes = attempt.text(hidden, guard.hide(prefix))
        if enable_thinking is not None and not self.reads(THINKING_SWITCHES):
            notes = (*notes, NO_SWITCH)
        return Rendered(guard.segments(text), notes, bool(bos_token) and text.startswith(bos_token))

    def reads(self, names: Collection[str]) -> bool:
        """Whether the template looks at a variable of one of these names."""
        from llmrun.chat.sandbox import variables_of

        return not variables_of(self.source).isdisjoint(names)


class Attempt(NamedTuple):
    """One rendering, in as many tries as it takes."""

    template: Template
    variables: Mapping[str, Any]
    free: Iterator[str]  # characters that occur nowhere
    now: datetime
    budget: Budget  # of all tries together

    def text(self, messages: Sequence[Message], prefix: str) -> tuple[str, tuple[str, ...]]:
        """The prompt and notes on it. A template that fails without tools gets empty lists of them."""
        with_none = self._replace(variables={"tools": None, "documents": None, **self.variables})
        try:
            return with_none.prefixed(messages, prefix)
        except TemplateRefusedError:
            raise
        except TemplateError as error:
            date = f"{self.now:%B %d %Y}"
            empty = {"tools": [], "documents": [], "functions": "[]", "datetime": date, **self.variables}
            try:
                text, notes = self._replace(variables=empty).prefixed(messages, prefix)
            except TemplateError:
                raise error from None
            return text, (*notes, NO_TOOLS)

    def prefixed(self, messages: Sequence[Message], prefix: str) -> tuple[str, tuple[str, ...]]:
        """A prompt that ends right after `prefix`, within the assistant's turn.

        The turn is rendered as a finished one and cut, so that a template that opens with reasoning, or names
        a channel, does here what it does before an answer.
        """
        if not prefix:
            return self.accepted(messages)
        end = next(self.free)
        finished = self._replace(variables={**self.variables, "add_generation_prompt": False})
        with suppress(TemplateError):
            text, notes = finished.accepted([*messages, Message("assistant", prefix + end)])
            if prefix + end in text:
                return text[: text.rindex(end)], notes
        text, notes = self.accepted(messages)
        return text + prefix, notes

    def accepted(self, messages: Sequence[Message]) -> tuple[str, tuple[str, ...]]:
        """The text of the first form that the template takes and prints in full, and notes on it."""
        from llmrun.chat.sandbox import RefusedByTemplate

        refusal = ""
        partial: tuple[str, tuple[str, ...]] | None = None
        for form in forms(messages):
            try:
                text = self.rendered(form)
            except RefusedByTemplate as error:
                refusal = one_line(error)
                continue
            except TemplateError:
                if partial or refusal:
                    continue  # another form was taken, or refused in words: these count
                raise
            lost = self.lost(form, text)
            if not lost:
                return text, form.notes
            left_out = tuple(f"the template leaves out the {role} message" for role in lost)
            partial = partial or (text, form.notes + left_out)
        if partial:
            return partial
        raise TemplateRefusedError(f"{self.template.name} refuses the messages: {refusal}", HINT)

    def rendered(self, form: Form) -> str:
        """Raises RefusedByTemplate where the template calls raise_exception, TemplateError where it fails."""
        from llmrun.chat import sandbox

        variables = {**self.variables, "messages": form.variables()}
        try:
            return sandbox.render(self.template.program, variables, self.now, self.budget)
        except sandbox.RefusedByTemplate:
            raise
        except Exception as error:
            where = f"{self.template.name}{sandbox.line_of(error)}"
            raise TemplateError(f"{where}: {one_line(error)}", HINT) from error

    def lost(self, form: Form, text: str) -> list[Role]:
        """Roles whose message the template does not print, not even changed."""
        return [
            message.role
            for index, message in enumerate(form.messages)
            if message.role != "assistant" and message.content.strip() not in text and not self.prints(form, index)
        ]

    def prints(self, form: Form, index: int) -> bool:
        mark = next(self.free)
        messages = list(form.messages)
        messages[index] = messages[index]._replace(content=mark)
        try:
            return mark in self.rendered(form._replace(messages=tuple(messages)))
        except Exception:
            return True  # it looks into the text, so it does not pass over it


def forms(messages: Sequence[Message]) -> Iterator[Form]:
    """The messages as they are, then the forms that stricter templates take; each keeps all text."""
    shapes = [Form(tuple(messages))]
    joined = join_neighbours(messages)
    notes = (JOINED,) if len(joined) < len(messages) else ()
    if notes:
        shapes.append(Form(joined, notes))
    if len(messages) > 1 and messages[0].role == "system":
        merged = join_neighbours([messages[0]._replace(role="user"), *messages[1:]])
        shapes.append(Form(merged, (MERGED, *notes)))
    yield from shapes
    yield from (form._replace(typed=True) for form in shapes)


def join_neighbours(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Turns of one role that follow each other as one, a blank line between them."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            content = f"{joined[-1].content}\n\n{message.content}"
            reasoning = message.reasoning or joined[-1].reasoning
            joined[-1] = message._replace(content=content, reasoning=reasoning)
        else:
            joined.append(message)
    return tuple(joined)


def as_variables(message: Message, typed: bool) -> dict[str, Any]:
    content = [{"type": "text", "text": message.content}] if typed else message.content
    values: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        values |= dict.fromkeys(REASONING_KEYS, message.reasoning)
    return values


def one_line(error: Exception) -> str:
    if isinstance(error, (RecursionError, MemoryError)):
        return "it nests too deeply"
    return " ".join(str(error).split()) or type(error).__name__
