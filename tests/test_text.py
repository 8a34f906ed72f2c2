"""The stream decoder: whole characters, stop strings held back (cases STR-01 and STR-02)."""

import random

import pytest

from llmrun.engine.text import TextStream

PARTY = [b" \xf0\x9f", b"\x8e", b"\x89"]  # the pieces SmolLM2 makes of " 🎉"


def whole(pieces: list[bytes], stops: tuple[str, ...] = ()) -> str:
    stream = TextStream(stops)
    out = []
    for piece in pieces:
        out.append(stream.feed(piece))
        if stream.stopped:
            break
    return "".join(out) + stream.finish()


def test_a_character_appears_once_its_last_byte_has_come() -> None:
    """STR-01"""
    stream = TextStream()
    assert [stream.feed(piece) for piece in PARTY] == [" ", "", "🎉"]
    assert stream.finish() == ""


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    """STR-01: without U+FFFD, the same with and without stop strings."""
    assert whole(PARTY[:2]) == " "
    assert whole(PARTY[:2], ("never",)) == " "


def test_bytes_that_are_no_text_leave_no_replacement_character() -> None:
    """STR-01"""
    assert whole([b"a\xff", b"\xc3(", b"b"]) == "a(b"


def test_a_replacement_character_that_the_model_wrote_stays() -> None:
    assert whole(["a\ufffdb".encode()]) == "a\ufffdb"


def test_stop_string_over_several_pieces_shows_nothing_of_itself() -> None:
    """STR-02"""
    stream = TextStream(("STOP",))
    shown = [stream.feed(piece) for piece in (b"one S", b"T", b"O", b"P two")]
    assert shown == ["one ", "", "", ""]
    assert stream.stopped
    assert stream.finish() == ""


def test_text_held_back_for_a_stop_string_that_never_comes_is_given_out() -> None:
    assert whole([b"one ST", b"AY"], ("STOP",)) == "one STAY"
    assert whole([b"one ST"], ("STOP",)) == "one ST"


def test_the_earliest_of_several_stop_strings_wins() -> None:
    assert whole([b"a b c d"], ("d", "b", "")) == "a "


@pytest.mark.parametrize("seed", range(50))
def test_any_cut_of_the_bytes_gives_the_same_text(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab é日🎉STOP\n") for _ in range(40))
    raw = text.encode()
    cuts = sorted(rng.sample(range(len(raw)), 12))
    pieces = [raw[i:j] for i, j in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stops = ("STO", "🎉a")
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert whole(pieces, stops) == text[: min(ends, default=len(text))]
