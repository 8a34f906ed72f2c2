"""From messages (or raw text) to the token ids that a model reads."""

from collections.abc import Sequence
from typing import NamedTuple

from llmrun.chat.builtin import pick
from llmrun.chat.conversation import Message
from llmrun.chat.guard import Segment
from llmrun.chat.template import Template
from llmrun.engine.model import Vocab
from llmrun.gguf.header import Header
from llmrun.gguf.info import ModelInfo
from llmrun.gguf.values import NumberArray, StringArray
from llmrun.report import Report

CONTROL = 3  # enum llama_token_type


class Prompt(NamedTuple):
    """What goes into the model. `has_bos`: the text brings its own BOS, the tokenizer must not add another.
    `stop`: texts that end an answer in this template, where the vocabulary has no token for them."""

    segments: tuple[Segment, ...]
    has_bos: bool = False
    stop: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


def tokenize(prompt: Prompt, vocab: Vocab) -> list[int]:
    """Token ids: BOS once where the model asks for one, then each segment; only those marked so may form
    control tokens."""
    tokens: list[int] = []
    if vocab.add_bos and vocab.bos >= 0 and not prompt.has_bos:
        tokens.append(vocab.bos)
    for segment in prompt.segments:
        tokens += vocab.tokenize(segment.text, parse_special=segment.parse_special)
    return tokens


def raw_prompt(text: str, header: Header, *, parse_special: bool) -> Prompt:
    """The text as it is; a BOS that it spells out itself is not doubled."""
    bos = token_text(header, "bos")
    return Prompt((Segment(text, parse_special),), bool(bos) and parse_special and text.startswith(bos))


def chat_prompt(
    info: ModelInfo,
    header: Header,
    messages: Sequence[Message],
    report: Report,
    *,
    wanted: str | None = None,
    prefix: str = "",
    thinking: bool | None = None,
) -> Prompt | None:
    """The messages through the model's template, or the `wanted` one (a name or a file); None without any.

    `prefix` begins the answer. Raises TemplateError."""
    templates = dict(info.named_templates)
    if info.chat_template is not None:
        templates["default"] = info.chat_template
    picked = pick(templates, wanted)
    if picked is None:
        return None
    rendered = Template.compile(picked.source, name=picked.name).render(
        messages,
        bos_token=token_text(header, "bos"),
        eos_token=token_text(header, "eos"),
        control_tokens=control_tokens(header),
        prefix=prefix,
        enable_thinking=thinking,
    )
    for note in rendered.notes:
        report.note(note)
    return Prompt(rendered.segments, rendered.starts_with_bos, picked.stop)


def token_text(header: Header, kind: str) -> str:
    """The text of the special token `kind` (bos, eos), empty where the file names none."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    index = header.metadata.get(f"tokenizer.ggml.{kind}_token_id")
    if not isinstance(index, int) or not isinstance(tokens, StringArray) or not 0 <= index < len(tokens):
        return ""
    return tokens.pick([index])[0]


def control_tokens(header: Header) -> list[str]:
    """The texts of the vocabulary's control tokens."""
    tokens, types = (header.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if not isinstance(tokens, StringArray) or not isinstance(types, NumberArray):
        return []
    return tokens.pick([index for index, type in enumerate(types.numbers[: len(tokens)]) if type == CONTROL])


def visible_tokens(texts: frozenset[str], header: Header) -> frozenset[int]:
    """The ids of tokens with these texts."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not texts or not isinstance(tokens, Sequence):
        return frozenset()
    return frozenset(i for i, token in enumerate(tokens) if token in texts)
