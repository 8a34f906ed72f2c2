"""The token ids of a growing conversation: what was generated is kept as ids, never tokenized again."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from llmrun.engine.model import Vocab
from llmrun.prepare.prompt import Prompt, tokenize

SIGHT = 32  # bytes that must agree for a place to be looked at more closely


@dataclass
class Transcript:
    """Texts that the model has read and written, each the beginning of the next, and the ids they stand for.

    Tokenizing an answer's text again may cut it otherwise than the model did, and the KV cache would be of no use
    from there on. So where a new prompt begins with a known text, the known ids are its beginning; and where the
    oldest exchange has left the prompt, the known ids before and after it are.
    """

    known: list[tuple[bytes, tuple[int, ...]]] = field(default_factory=list)

    def tokens_of(self, prompt: Prompt, vocab: Vocab) -> list[int]:
        """The ids of a prompt, those of the longest known text first that it begins with."""
        text = prompt.text.encode("utf-8", "surrogatepass")
        if not self.known or not _plain(prompt):
            self.known.clear()
            return tokenize(prompt, vocab)
        found = next((entry for entry in reversed(self.known) if text.startswith(entry[0])), None)
        found = found or _without_a_span(text, *self.known[-1], vocab)
        while self.known and not text.startswith(self.known[-1][0]):
            self.known.pop()
        if found is None:
            return tokenize(prompt, vocab)
        start, tokens = found
        rest = text[len(start) :].decode("utf-8", "surrogatepass")
        return [*tokens, *vocab.tokenize(rest, parse_special=True)]

    def remember(self, prompt: Prompt, tokens: list[int], answer: str, generated: tuple[int, ...]) -> None:
        """Take in a prompt and the answer that followed. `answer` is the exact text of `generated`."""
        if _plain(prompt):
            text = prompt.text.encode("utf-8", "surrogatepass")
            self.known.append((text, tuple(tokens)))
            self.known.append((text + answer.encode(), (*tokens, *generated)))


def _without_a_span(
    text: bytes, known: bytes, tokens: tuple[int, ...], vocab: Vocab
) -> tuple[bytes, tuple[int, ...]] | None:
    """A beginning of `text` that is `known` with one span of whole tokens taken out, and its ids."""
    ends = list(accumulate(len(vocab.piece(token, special=True)) for token in tokens))
    lead = (ends[-1] if ends else 0) - len(known)  # a BOS that the tokenizer added, which no text shows
    places = {end - lead: i + 1 for i, end in enumerate(ends) if end >= lead}
    agree = next((i for i in range(min(len(text), len(known))) if text[i] != known[i]), 0)
    for resumed in _occurrences(known, text[agree : agree + SIGHT], agree + 1):
        if not text.startswith(known[resumed:], agree):
            continue
        for back in range(agree):  # to where both cuts are between tokens
            if known[agree - back : agree] != known[resumed - back : resumed]:
                break
            before, after = places.get(agree - back), places.get(resumed - back)
            if before and after:
                return text[: agree + len(known) - resumed], tokens[:before] + tokens[after:]
    return None


def _occurrences(text: bytes, part: bytes, start: int) -> Iterator[int]:
    while part and (start := text.find(part, start)) >= 0:
        yield start
        start += 1


def _plain(prompt: Prompt) -> bool:
    return all(segment.parse_special for segment in prompt.segments)
