"""Splits a model's text, as it comes, into reasoning and answer. Knows nothing of tokens or terminals."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["reasoning", "answer"]


@dataclass(frozen=True)
class Piece:
    kind: Kind
    text: str


class ReasoningSplitter:
    """Feed it the answer as it comes; `prompt` is the end of the prompt, which may already open the tag."""

    def __init__(self, prompt: str = "") -> None:
        self.prompt = prompt

    def feed(self, text: str) -> list[Piece]:
        return [Piece("answer", text)] if text else []

    def finish(self) -> list[Piece]:
        return []
