"""Token ids of a conversation stay what the model generated."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.chat.guard import Segment
from llmrun.engine.model import Model, ModelSettings, Vocab
from llmrun.engine.prefix import removed_span
from llmrun.prepare.prompt import Prompt
from llmrun.prepare.transcript import Transcript


@pytest.fixture(scope="module")
def vocab(tiny_model: Path) -> Iterator[Vocab]:
    with Model.load(tiny_model, ModelSettings(vocab_only=True)) as model:
        yield model.vocab


def prompt(*turns: str) -> Prompt:
    text = "".join(
        f"<|im_start|>{'user' if i % 2 == 0 else 'assistant'}\n{turn}<|im_end|>\n" for i, turn in enumerate(turns)
    )
    return Prompt((Segment(text + "<|im_start|>assistant\n", True),))


def spelled(vocab: Vocab, text: str) -> tuple[int, ...]:
    """The text byte by byte, as a model may generate it and no tokenizer would."""
    return tuple(token for char in text for token in vocab.tokenize(char))


def test_generated_ids_are_not_tokenized_again(vocab: Vocab) -> None:
    answer = " the inner the"
    generated = spelled(vocab, answer)
    assert list(generated) != vocab.tokenize(answer)
    transcript = Transcript()
    first = transcript.tokens_of(prompt("hi"), vocab)
    transcript.remember(prompt("hi"), first, answer, generated)
    second = transcript.tokens_of(prompt("hi", answer, "more"), vocab)
    assert second[: len(first) + len(generated)] == [*first, *generated]


def test_an_answer_that_the_template_changes_costs_only_itself(vocab: Vocab) -> None:
    transcript = Transcript()
    first = transcript.tokens_of(prompt("hi"), vocab)
    transcript.remember(prompt("hi"), first, "<think>x</think> the", spelled(vocab, "<think>x</think> the"))
    second = transcript.tokens_of(prompt("hi", " the", "more"), vocab)
    assert second == vocab.tokenize(prompt("hi", " the", "more").text, parse_special=True)
    assert second[: len(first)] == first


@pytest.mark.parametrize("oldest", ["first", "The same start", "x"])
def test_what_stays_keeps_its_ids_when_the_oldest_exchange_leaves(vocab: Vocab, oldest: str) -> None:
    transcript = Transcript()
    turns = [oldest]
    for answer, message in ((" the inner", "The same end"), (" in the", "third")):
        tokens = transcript.tokens_of(prompt(*turns), vocab)
        transcript.remember(prompt(*turns), tokens, answer, spelled(vocab, answer))
        turns += [answer, message]
    resident = list(transcript.known[-1][1])
    shortened = transcript.tokens_of(prompt(*turns[2:]), vocab)
    start = next(i for i in range(len(shortened)) if shortened[i] != resident[i])
    span = removed_span(shortened, resident)
    assert span is not None and span[0] == start
    kept = resident[: span[0]] + resident[span[1] :]
    assert shortened[: len(kept)] == kept
    text = b"".join(vocab.piece(token, special=True) for token in shortened)
    assert text.decode() == prompt(*turns[2:]).text


def test_a_prompt_that_has_nothing_to_do_with_it_is_tokenized_afresh(vocab: Vocab) -> None:
    transcript = Transcript()
    tokens = transcript.tokens_of(prompt("one"), vocab)
    transcript.remember(prompt("one"), tokens, "two", spelled(vocab, "two"))
    other = Prompt((Segment("something else", True),))
    assert transcript.tokens_of(other, vocab) == vocab.tokenize("something else", parse_special=True)
