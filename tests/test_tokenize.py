"""`llmrun tokenize`, and the way from text to tokens and back."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrun.engine.model import Model, ModelSettings, Vocab
from llmrun.errors import UsageError
from tests.cli import llmrun
from tests.tiny import CHATML, IM_END, IM_START, tiny_gguf


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def vocab(request: pytest.FixtureRequest) -> Iterator[Vocab]:
    path: Path = request.getfixturevalue(request.param)
    with Model.load(path, ModelSettings(vocab_only=True)) as model:
        yield model.vocab


@pytest.mark.parametrize("white", [" ", "\t", "\n"])
def test_runs_of_white_space_survive(vocab: Vocab, white: str) -> None:
    """TOK-01: tokens longer than a buffer of 32 bytes."""
    for n in range(1, 301):
        text = white * n + "X"
        tokens = vocab.tokenize(text)
        assert vocab.detokenize(tokens).decode() == text
        assert b"".join(map(vocab.piece, tokens)).decode().endswith(text)


@pytest.mark.parametrize("seed", range(40))
def test_any_text_survives(vocab: Vocab, seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "ab Z09 .,!?'\"\n\t  éßñ日本語🎉👩‍👩‍👧<|>im_end\u200b\ufffd\U000f0000"
    text = "".join(rng.choice(alphabet) for _ in range(60))
    assert vocab.detokenize(vocab.tokenize(text)).decode() == text


def test_text_of_control_tokens_is_text_unless_asked(tiny_model: Path) -> None:
    with Model.load(tiny_model, ModelSettings(vocab_only=True)) as model:
        assert model.vocab.tokenize("<|im_end|>", parse_special=True) == [IM_END]
        assert len(model.vocab.tokenize("<|im_end|>")) == len("<|im_end|>")
        assert model.vocab.piece(IM_END) == b""
        assert model.vocab.piece(IM_END, special=True) == b"<|im_end|>"


def test_ids_outside_the_vocabulary_are_refused(tiny_model: Path) -> None:
    with Model.load(tiny_model, ModelSettings(vocab_only=True)) as model:
        for token in (-1, model.vocab.n_tokens, 2**31 - 1):
            with pytest.raises(UsageError):
                model.vocab.piece(token)
        with pytest.raises(UsageError):
            model.vocab.tokenize("\ud800")


def test_there_and_back_through_the_command(smollm2: Path) -> None:
    """TOK-01"""
    text = (" " * 128 + "X\n\tnaïve 日本 🎉 <|im_end|>\n").encode()
    ids = llmrun("tokenize", smollm2, "--ids", stdin=text)
    assert llmrun("tokenize", smollm2, "--decode", stdin=ids.out).out == text


def test_forms_of_the_result(tiny_model: Path, tmp_path: Path) -> None:
    ids = llmrun("tokenize", tiny_model, "--ids", "hello").text.split()
    assert llmrun("tokenize", tiny_model, "--count", "hello").text == f"{len(ids)}\n"
    made = json.loads(llmrun("tokenize", tiny_model, "--json", "hello").text)
    assert (made["count"], [str(i) for i in made["ids"]], "".join(made["pieces"])) == (len(ids), ids, "hello")
    lines = llmrun("tokenize", tiny_model, "hello").text.splitlines()
    assert [line.split()[0] for line in lines] == ids
    file = tmp_path / "t.txt"
    file.write_bytes(b"hello")
    assert llmrun("tokenize", tiny_model, "--ids", "-f", file).text.split() == ids


def test_chat_puts_the_text_through_the_template(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "m.gguf", template=CHATML)
    ids = [
        int(i) for i in llmrun("tokenize", model, "--chat", "-s", "Be brief", "--ids", "hi <|im_end|>").text.split()
    ]
    assert ids.count(IM_START) == 3  # system, user, assistant
    assert ids.count(IM_END) == 2  # the one in the message is text


def test_special_reads_and_shows_control_tokens(tiny_model: Path) -> None:
    ids = llmrun("tokenize", tiny_model, "--special", "--ids", "<|im_start|>a").text.split()
    assert ids[0] == str(IM_START)
    decode = ("tokenize", tiny_model, "--decode")
    assert llmrun(*decode, "--special", " ".join(ids)).text == "<|im_start|>a"
    assert llmrun(*decode, " ".join(ids)).text == "a"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--decode", "1 two"), "token ids"),
        (("--decode", "999999"), "outside the vocabulary"),
        (("--ids", "--count", "x"), "exclude each other"),
        (("-f", "/no/such/file"), "cannot read"),
        (("--encoding", "klingon", "-f", "pyproject.toml"), "klingon"),
    ],
)
def test_wrong_input(tiny_model: Path, args: tuple[str, ...], said: str) -> None:
    llmrun("tokenize", tiny_model, *args).failed(2, said)


def test_bytes_that_are_no_text_are_refused(tiny_model: Path) -> None:
    """IN-04"""
    llmrun("tokenize", tiny_model, stdin=b"caf\xe9").failed(2, "offset 3")
