"""The token ids of a growing conversation: what was generated is kept as ids, never tokenized again."""

from dataclasses import dataclass, field

from llmrun.engine.model import Vocab
from llmrun.prepare.prompt import Prompt, tokenize


@dataclass
class Transcript:
    """Texts that the model has read and written, each the beginning of the next, and the ids they stand for.

    Tokenizing an answer's text again may cut it otherwise than the model did, and the KV cache would be of no use
    from there on. So where a new prompt begins with a known text, the known ids are its beginning.
    """

    known: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def tokens_of(self, prompt: Prompt, vocab: Vocab) -> list[int]:
        """The ids of a prompt, those of the longest known text first that it begins with."""
        text = prompt.text
        while self.known and not text.startswith(self.known[-1][0]):
            self.known.pop()
        if not self.known or not _plain(prompt):
            return tokenize(prompt, vocab)
        start, tokens = self.known[-1]
        return [*tokens, *vocab.tokenize(text[len(start) :], parse_special=True)]

    def remember(self, prompt: Prompt, tokens: list[int], answer: str, generated: tuple[int, ...]) -> None:
        """Take in a prompt and the answer that followed. `answer` is the exact text of `generated`."""
        if _plain(prompt):
            self.known.append((prompt.text, tuple(tokens)))
            self.known.append((prompt.text + answer, (*tokens, *generated)))


def _plain(prompt: Prompt) -> bool:
    return all(segment.parse_special for segment in prompt.segments)
