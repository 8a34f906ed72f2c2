"""Keeps the texts of control tokens inside messages from becoming control tokens.

Knows texts only: which tokens a model has, and their ids, is the caller's.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from llmrun.errors import TemplateError

PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0xE000, 0xF900), range(0x100000, 0x10FFFE))


class Segment(NamedTuple):
    """A stretch of the prompt. The text of a control token in it is that token only if `parse_special`."""

    text: str
    parse_special: bool


def unused_characters(taken: Iterable[str]) -> Iterator[str]:
    """Private-use characters that occur in none of `taken`: no template trims, splits or changes these."""
    used = set().union(*taken)
    for code in (code for codes in PRIVATE_USE for code in codes):
        if chr(code) not in used:
            yield chr(code)
    raise TemplateError("the messages use every private-use character there is, so none can mark their parts")


class Guard(NamedTuple):
    """Each text of a control token that a message holds is one unused character while the template runs."""

    tokens: tuple[str, ...]  # texts of all control tokens
    stand_ins: Mapping[str, str]  # for those that occur in a message

    @classmethod
    def over(cls, texts: Collection[str], control_tokens: Collection[str], free: Iterator[str]) -> "Guard":
        tokens = tuple(token for token in control_tokens if token)
        found = sorted({token for text in texts for token in occurring(tokens, text)}, key=len, reverse=True)
        return cls(tokens, {token: next(free) for token in found})

    def hide(self, text: str) -> str:
        if not self.stand_ins:
            return text
        return any_of(self.stand_ins).sub(lambda match: self.stand_ins[match[0]], text)

    def segments(self, text: str) -> tuple[Segment, ...]:
        """`text` as one segment; if it holds stand-ins, cut at the template's own control tokens.

        A tokenizer cuts there too, so each stretch between them becomes the ids it would have become whole.
        """
        if not any(char in text for char in self.stand_ins.values()):
            return (Segment(text, True),)
        originals = {ord(char): token for token, char in self.stand_ins.items()}
        segments: list[Segment] = []
        for piece in cut_at(occurring(self.tokens, text), text):
            plain = piece.translate(originals)
            special = plain == piece
            if special and segments and segments[-1].parse_special:
                segments[-1] = Segment(segments[-1].text + piece, True)
            else:
                segments.append(Segment(plain, special))
        return tuple(segments)


def occurring(tokens: Collection[str], text: str) -> list[str]:
    """Those of `tokens` that `text` holds. A vocabulary may have thousands, most with the same beginning."""
    kin: dict[str, list[str]] = {}
    for token in tokens:
        kin.setdefault(token[:4], []).append(token)
    return [token for start, group in kin.items() if start in text for token in group if token in text]


def any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)))


def cut_at(tokens: list[str], text: str) -> list[str]:
    """`text` in pieces, each a run of `tokens` or free of them."""
    if not tokens:
        return [text]
    return [piece for piece in re.split(f"((?:{any_of(tokens).pattern})+)", text) if piece]
