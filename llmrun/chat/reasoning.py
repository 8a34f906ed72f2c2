"""Splits a model's text, as it comes, into reasoning and answer. Knows nothing of tokens or terminals."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["reasoning", "answer"]
State = Literal["start", "reasoning", "between", "answer"]


class Piece(NamedTuple):
    kind: Kind
    text: str


class Style(NamedTuple):
    """How a family of models marks its reasoning: one of `opens`, the reasoning, `close`, the answer.

    The answer may have a mark of its own before it, one of `answers`, and after it, `end`. `tokens` are what
    a vocabulary may hold these marks as, whole or in parts.
    """

    opens: tuple[str, ...]
    close: str
    answers: tuple[str, ...] = ()
    end: str = ""
    tokens: tuple[str, ...] = ()


def between(start: str, close: str) -> Style:
    return Style((start,), close, tokens=(start, close))


def paired(name: str) -> Style:
    return between(f"<{name}>", f"</{name}>")


# https://cookbook.openai.com/articles/openai-harmony
HARMONY = Style(
    opens=tuple(
        f"{turn}<|channel|>{channel}<|message|>"
        for channel in ("analysis", "commentary")
        for turn in ("", "<|start|>assistant")
    ),
    close="<|end|>",
    answers=("<|channel|>final<|message|>", "<|start|>assistant<|channel|>final<|message|>"),
    tokens=("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
)
GRANITE = Style(("<think>",), "</think>", ("<response>",), "</response>", ("<think>", "</think>"))
THINK = paired("think")
SOLAR = Style(
    ("<|think|>",),
    "<|end|>",
    ("<|begin|>assistant<|content|>", "<|content|>"),
    tokens=("<|think|>", "<|end|>", "<|begin|>", "<|content|>"),
)
KIMI_K3 = Style(
    ("<|open|>think<|sep|>",),
    "<|close|>think<|sep|>",
    ("<|open|>response<|sep|>",),
    "<|close|>response<|sep|>",
    ("<|open|>", "<|close|>", "<|sep|>"),
)
APRIEL = Style(("Here are my reasoning steps:",), "[BEGIN FINAL RESPONSE]", end="[END FINAL RESPONSE]")
STYLES = (
    HARMONY,
    SOLAR,
    KIMI_K3,
    APRIEL,
    GRANITE,
    THINK,
    *map(paired, ("thinking", "thought", "reasoning", "seed:think", "mm:think")),
    between("[THINK]", "[/THINK]"),
    between("<|START_THINKING|>", "<|END_THINKING|>"),
    between("<|inner_prefix|>", "<|inner_suffix|>"),
    between("◁think▷", "◁/think▷"),
    Style(("<|channel>thought",), "<channel|>", tokens=("<|channel>", "<channel|>")),
)


def styles_of(template: str) -> tuple[Style, ...]:
    """The styles that the source of a template speaks of; `<think>` where it speaks of none."""
    spoken = tuple(style for style in STYLES if all(mark in template for mark in (style.close, *style.answers[:1])))
    return spoken or (THINK,)


def opened_by(prompt: str) -> tuple[Style, State] | None:
    """What the end of the prompt has begun, if it ends in a mark."""
    end = prompt.rstrip()
    unheard = re.search(r"<([^<>/\s]*think[^<>\s]*)>$", end)
    for style in (*STYLES, *([paired(unheard[1])] if unheard else [])):
        if end.endswith(style.opens):
            return style, "reasoning"
        if style.answers and end.endswith(style.answers):
            return style, "answer"
    return None


class ReasoningSplitter:
    """Splits one answer: reasoning is what stands in marks at its start. Marks later, or in code, are text.

    `template` is the source of the chat template; `prompt` is what it made, which may open the reasoning.
    """

    def __init__(self, template: str = "", prompt: str = "") -> None:
        self.styles = styles_of(template)
        self.style, self.state = opened_by(prompt) or (self.styles[0], "start")
        self.held = ""  # not given out yet
        self.thought = ""  # given out as reasoning

    @property
    def tokens(self) -> frozenset[str]:
        """Control tokens that must be fed as text, where others are left out."""
        return frozenset(token for style in (*self.styles, self.style) for token in style.tokens)

    def feed(self, text: str) -> list[Piece]:
        """What is settled by now: what may be the beginning of a mark, and space before one, is held back."""
        self.held += text
        return list(self._settled(final=False))

    def finish(self) -> list[Piece]:
        """What was held back: no more text comes."""
        return list(self._settled(final=True))

    def _settled(self, final: bool) -> Iterator[Piece]:
        while True:
            before = self.state, len(self.held)
            if self.state == "reasoning":
                yield from self._reason(final)
            elif self.state == "answer":
                yield from self._answer(final)
            else:
                self._look_for_mark(final)
            if (self.state, len(self.held)) == before:
                return

    def _look_for_mark(self, final: bool) -> None:
        """Space before a mark and after reasoning is dropped; before an answer without marks it is text."""
        text = self.held.lstrip()
        styles = self.styles if self.state == "start" else (self.style,)
        marks = [(mark, style) for style in styles for mark in (*style.opens, *style.answers)]
        for mark, style in marks:
            if text.startswith(mark):
                self.style, self.state = style, "reasoning" if mark in style.opens else "answer"
                self.held = text[len(mark) :].lstrip()
                if self.thought and self.state == "reasoning":
                    self.held = "\n\n" + self.held
                return
        if final or not any(mark.startswith(text) for mark, _ in marks):
            self.held = self.held if self.state == "start" else text
            self.state = "answer"

    def _reason(self, final: bool) -> Iterator[Piece]:
        if not self.thought:
            self.held = self.held.lstrip()
            if not final and any(mark.startswith(self.held) for mark in self.style.opens):
                return
            for mark in self.style.opens:  # some models repeat the mark that ends the prompt
                if self.held.startswith(mark):
                    self.held = self.held[len(mark) :]
                    return
        close = self.style.close
        at = self.held.find(close)
        while at >= 0:
            after = at + len(close)
            literal = is_code(self.thought + self.held[:at], self.held[after:], final)
            if not literal:
                yield from self._give("reasoning", self.held[:at].rstrip())
                if literal is False:
                    self.held = self.held.lstrip().removeprefix(close)
                    self.state = "between"
                return
            at = self.held.find(close, after)
        yield from self._give("reasoning", self.held[: settled(self.held, close, final)])

    def _answer(self, final: bool) -> Iterator[Piece]:
        end = self.style.end
        text = self.held.rstrip()
        if end and text.endswith(end):
            yield from self._give("answer", text.removesuffix(end).rstrip())
            self.held = "" if final else self.held
        else:
            yield from self._give("answer", self.held[: settled(self.held, end, final)])

    def _give(self, kind: Kind, text: str) -> Iterator[Piece]:
        self.held = self.held[len(text) :]
        if kind == "reasoning":
            self.thought += text
        if text:
            yield Piece(kind, text)


def settled(text: str, mark: str, final: bool) -> int:
    """How much of `text` cannot belong to a `mark` that is still coming, nor be the space before it."""
    if final or not mark:
        return len(text)
    begun = next((n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), 0)
    return len(text[: len(text) - begun].rstrip())


def is_code(before: str, after: str, final: bool) -> bool | None:
    """Whether what stands between `before` and `after` is in a code fence or span; None: not to be told yet.

    A fence or span that is never closed is none.
    """
    fence = ""
    for line in before.split("\n"):
        start = line.lstrip()[:3]
        if start in ("```", "~~~") and (not fence or start == fence):
            fence = "" if fence else start
    if fence:
        return True if f"\n{fence}" in after else False if final else None
    if before.rpartition("\n")[2].count("`") % 2 == 0:
        return False
    rest, newline, _ = after.partition("\n")
    return True if "`" in rest else False if newline or final else None
