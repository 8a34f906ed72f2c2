"""The token ids of a growing conversation: what was generated is kept as ids, never tokenized again."""

from dataclasses import dataclass

from llmrun.engine.model import Vocab
from llmrun.prepare.prompt import Prompt, tokenize


@dataclass
class Transcript:
    """What the model last read and wrote: a text, and the ids it stands for.

    Tokenizing an answer's text again may cut it otherwise than the model did, and the KV cache would be of no use
    from there on. So where a new prompt begins with the known text, the known ids are its beginning.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()

    def tokens_of(self, prompt: Prompt, vocab: Vocab) -> list[int]:
        """The ids of a prompt, known ones first where it continues what is known."""
        plain = all(segment.parse_special for segment in prompt.segments)
        text = prompt.text
        if not (plain and self.text and text.startswith(self.text)):
            return tokenize(prompt, vocab)
        return [*self.tokens, *vocab.tokenize(text[len(self.text) :], parse_special=True)]

    def remember(self, prompt: Prompt, tokens: list[int], answer: str, generated: tuple[int, ...]) -> None:
        """Take in a prompt and the answer that followed. `answer` is the exact text of `generated`."""
        if all(segment.parse_special for segment in prompt.segments):
            self.text, self.tokens = prompt.text + answer, (*tokens, *generated)
        else:
            self.text, self.tokens = "", ()
