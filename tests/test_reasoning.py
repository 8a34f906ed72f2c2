"""Reasoning and answer, however the text is cut into pieces."""

import random

import pytest

from llmrun.chat.reasoning import STYLES, ReasoningSplitter

HARMONY = "<|channel|>analysis<|message|> <|end|> <|channel|>final<|message|>"


def split(pieces: list[str], template: str = "", prompt: str = "") -> tuple[str, str]:
    """(reasoning, answer)"""
    splitter = ReasoningSplitter(template, prompt)
    given = [piece for text in pieces for piece in splitter.feed(text)] + splitter.finish()
    assert all(piece.text for piece in given)
    assert splitter.finish() == []
    texts = {kind: "".join(p.text for p in given if p.kind == kind) for kind in ("reasoning", "answer")}
    return texts["reasoning"], texts["answer"]


CASES = {
    "a tag pair": ("<think>\nTwo and two.\n</think>\n\nFour.", "", "", "Two and two.", "Four."),
    "opened by the prompt": ("Two and two.\n</think>\n\nFour.", "", "…<think>\n", "Two and two.", "Four."),
    "opened by both": ("<think>\nTwo.</think>Four.", "", "…<think>\n", "Two.", "Four."),
    "closed by the prompt": ("Four.", "", "…<think>\n\n</think>\n\n", "", "Four."),
    "empty": ("<think>\n\n</think>\n\nFour.", "", "", "", "Four."),
    "none": ("  Four.\n", "", "", "", "  Four.\n"),
    "nothing at all": ("", "", "", "", ""),
    "space only": (" \n", "", "", "", " \n"),
    "never closed": ("<think>Two and two", "", "", "Two and two", ""),
    "half a tag at the end": ("Four <thi", "", "", "", "Four <thi"),
    "half a tag is all": ("<thi", "", "", "", "<thi"),
    "half a closing tag": ("<think>Two </thi", "", "", "Two </thi", ""),
    "a tag that only begins like one": ("<thin>ice", "", "", "", "<thin>ice"),
    "later in the text": ("The tag <think>x</think> opens.", "", "", "", "The tag <think>x</think> opens."),
    "on a later line": ("Yes.\n<think>no</think>", "", "", "", "Yes.\n<think>no</think>"),
    "after reasoning": ("<think>a</think>b <think>c</think>", "", "", "a", "b <think>c</think>"),
    "in a code span": ("`<think>` opens it", "", "", "", "`<think>` opens it"),
    "closed in a code span": ("<think>The `</think>` tag.</think>ok", "", "", "The `</think>` tag.", "ok"),
    "an odd backtick": ("<think>a ` b</think>ok\nmore", "", "", "a ` b", "ok\nmore"),
    "closed in a fence": ("<think>\n```\n</think>\n```\nso</think>ok", "", "", "```\n</think>\n```\nso", "ok"),
    "a fence never closed": ("<think>\n```\nx\n</think>\n\nok", "", "", "```\nx", "ok"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>final<|message|>Four.",
        HARMONY, "<|start|>assistant", "Two.", "Four.",
    ),
    "gpt-oss, at length": (
        "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>commentary<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Four <|channel|>.",
        HARMONY, "<|start|>assistant", "Two.\n\nHm.", "Four <|channel|>.",
    ),
    "gpt-oss, answer only": ("<|channel|>final<|message|>Four.", HARMONY, "<|start|>assistant", "", "Four."),
    "Gemma": ("<|channel>thought\nTwo.\n<channel|>Four.", "<|channel> <channel|>", "<|turn>model\n", "Two.", "Four."),
    "Gemma, no thought": ("Four.", "<channel|>", "<|turn>model\n<|channel>thought\n<channel|>", "", "Four."),
    "Mistral": ("[THINK]Two.[/THINK]Four.", "[THINK] [/THINK]", "[INST]", "Two.", "Four."),
    "Command": ("Two.<|END_THINKING|>Four.", "<|END_THINKING|>", "<|START_THINKING|>", "Two.", "Four."),
    "Seed": ("<seed:think>Two.</seed:think>Four.", "</seed:think>", "", "Two.", "Four."),
    "Granite": (
        "<think>Two.</think>\n<response>Four.\n</response>\n",
        "<think></think><response></response>", "", "Two.", "Four.",
    ),
    "Apriel": (
        "Two.\n[BEGIN FINAL RESPONSE]\nFour.\n[END FINAL RESPONSE]\n",
        "", "<|begin_assistant|>\nHere are my reasoning steps:\n", "Two.", "Four.",
    ),
    "Apriel, a mark in the answer": (
        "a[BEGIN FINAL RESPONSE]b [END FINAL RESPONSE] c", "", "Here are my reasoning steps:\n",
        "a", "b [END FINAL RESPONSE] c",
    ),
    "Solar": (
        "<|think|>Two.<|end|><|begin|>assistant<|content|>Four.",
        "<|end|><|begin|>assistant<|content|>", "<|begin|>assistant", "Two.", "Four.",
    ),
    "Kimi": (
        "Two.<|close|>think<|sep|><|open|>response<|sep|>Four.<|close|>response<|sep|>",
        "", "<|open|>think<|sep|>", "Two.", "Four.",
    ),
    "Kimi, answer only": ("Four.<|close|>response<|sep|>", "", "<|open|>response<|sep|>", "", "Four."),
    "a tag of no known family": ("Two.</think:x>Four.", "", "<think:x>", "Two.", "Four."),
    "another family's tag": ("<thought>XML</thought>", "<think></think>", "", "", "<thought>XML</thought>"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reasoning_is_split_from_the_answer(name: str):
    text, template, prompt, reasoning, answer = CASES[name]
    assert split([text], template, prompt) == (reasoning, answer)


@pytest.mark.parametrize("name", CASES)
def test_where_the_text_is_cut_makes_no_difference(name: str):
    text, template, prompt, reasoning, answer = CASES[name]
    random_ = random.Random(name)
    assert split(list(text), template, prompt) == (reasoning, answer)
    for _ in range(20):
        cuts = sorted(random_.sample(range(len(text) + 1), min(len(text), 4)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
        assert split(pieces, template, prompt) == (reasoning, answer)


def test_text_is_given_out_as_it_comes():
    """Nothing waits but what may be the beginning of a mark, and the space before it."""
    splitter = ReasoningSplitter()
    given = [[(p.kind, p.text) for p in splitter.feed(text)] for text in ("<thi", "nk>", "Two", " and", "<", "b> ")]
    assert given == [[], [], [("reasoning", "Two")], [("reasoning", " and")], [], [("reasoning", "<b>")]]
    given = [[(p.kind, p.text) for p in splitter.feed(text)] for text in ("</", "think>\n", "Four", "\n", "<think>")]
    assert given == [[], [], [("answer", "Four")], [("answer", "\n")], [("answer", "<think>")]]


def test_an_answer_without_reasoning_is_given_out_at_once():
    splitter = ReasoningSplitter()
    assert [p.text for text in ("Fo", "ur", " ", "<") for p in splitter.feed(text)] == ["Fo", "ur", " ", "<"]


def test_the_marks_that_must_be_seen_are_named():
    assert {"<|channel|>", "<|message|>", "<|end|>"} <= ReasoningSplitter(HARMONY).tokens
    assert ReasoningSplitter().tokens == {"<think>", "</think>"}
    assert "</think:x>" in ReasoningSplitter("", "<think:x>").tokens


def test_every_style_splits_what_it_describes():
    for style in STYLES:
        for mark in style.opens:
            answer_mark = style.answers[0] if style.answers else ""
            text = f"{mark}\nWhy.{style.close}{answer_mark}So.{style.end}"
            assert split(list(text), style.close + "".join(style.answers)) == ("Why.", "So."), style
