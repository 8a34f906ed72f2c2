"""Conversations and their files, without a model."""

import json
import random
from pathlib import Path

import pytest

from llmrun.chat.conversation import Conversation, Message
from llmrun.chat.session import SessionFile, export, latest_session, list_sessions
from llmrun.errors import NotFoundError, UsageError
from llmrun.report import Quiet


def conversation(*records: dict[str, str]) -> Conversation:
    made = Conversation()
    for record in records:
        made.apply(record)
    return made


def user(text: str) -> dict[str, str]:
    return {"kind": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"kind": "assistant", "content": text}


def test_undo_takes_the_last_message_and_its_answer() -> None:
    made = conversation(user("a"), assistant("b"), user("c"), assistant("d"), {"kind": "undo"})
    assert made.turns == [Message("user", "a"), Message("assistant", "b")]
    made.apply(user("e"))
    made.apply({"kind": "undo"})
    assert [turn.content for turn in made.turns] == ["a", "b"]


def test_retry_takes_the_answer_only() -> None:
    assert conversation(user("a"), assistant("b"), {"kind": "retry"}).turns == [Message("user", "a")]


def test_the_oldest_exchange_leaves_the_prompt_and_the_system_message_stays() -> None:
    made = conversation({"kind": "system", "content": "s"}, user("a"), assistant("b"), user("c"), assistant("d"))
    assert made.leave_out_oldest() == "a"
    assert [message.content for message in made.messages] == ["s", "c", "d"]
    assert made.leave_out_oldest() == ""
    assert len(made.turns) == 4


def test_clear_keeps_the_system_message() -> None:
    made = conversation({"kind": "system", "content": "s"}, user("a"), {"kind": "clear"})
    assert [message.content for message in made.messages] == ["s"]


def test_a_session_file_gives_the_conversation_back() -> None:
    file = SessionFile.named("trip to Rome")
    file.append("session", model="smollm2")
    for record in (user("a"), assistant("b"), user("é 🎉\n"), assistant("d"), {"kind": "undo"}):
        file.append(**record)
    file.append("set", key="temp", value="0.1")
    loaded, settings = file.load(Quiet())
    assert [turn.content for turn in loaded.turns] == ["a", "b"]
    assert settings == {"model": "smollm2", "temp": "0.1"}
    assert latest_session() == file == list_sessions()[0]


def test_a_damaged_line_is_named_and_the_rest_is_loaded() -> None:
    file = SessionFile.named("s")
    for record in (user("a"), assistant("b"), user("c"), assistant("d")):
        file.append(**record)
    lines = file.path.read_bytes().splitlines()
    lines[1] = lines[1][:20]
    file.path.write_bytes(b"\n".join(lines) + b"\n\xff\xfe\n[1]\n")
    report = Quiet()
    loaded, _ = file.load(report)
    assert [turn.content for turn in loaded.turns] == ["a", "c", "d"]
    assert [note for note in report.notes if "line 2" in note]
    assert len([note for note in report.notes if "damaged" in note]) == 3


def test_a_record_cut_by_a_crash_does_not_spoil_the_next() -> None:
    file = SessionFile.named("s")
    file.append(**user("a"))
    with file.path.open("ab") as raw:
        raw.write(b'{"kind": "assistant", "cont')
    file.append(**assistant("b"))
    loaded, _ = file.load(Quiet())
    assert [turn.content for turn in loaded.turns] == ["a", "b"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x\x1b[31m", "con ", "a" * 200, "x\n"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        SessionFile.named(name)


def test_rename_never_overwrites_another_session() -> None:
    one, two = SessionFile.named("one"), SessionFile.named("two")
    one.append(**user("1"))
    two.append(**user("2"))
    with pytest.raises(UsageError):
        one.rename("two")
    assert one.rename("three").load(Quiet())[0].last_message == "1"


def test_what_is_not_there_cannot_be_resumed() -> None:
    with pytest.raises(NotFoundError):
        latest_session()
    with pytest.raises(NotFoundError):
        SessionFile.named("nothing").load(Quiet())


def test_export() -> None:
    made = conversation({"kind": "system", "content": "s"}, user("a"), assistant("b"))
    assert export(made, "md") == "## system\n\ns\n\n## user\n\na\n\n## assistant\n\nb\n"
    assert [m["role"] for m in json.loads(export(made, "json"))["messages"]] == ["system", "user", "assistant"]
    with pytest.raises(UsageError):
        export(made, "pdf")


@pytest.mark.parametrize("seed", range(20))
def test_any_history_survives_the_file(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    file = SessionFile(tmp_path / "s.jsonl")
    memory = Conversation()
    for _ in range(40):
        kinds = ["user", "undo", "retry", "clear", "system"]
        if memory.turns and memory.turns[-1].role == "user":
            kinds += ["assistant"] * 4
        kind = rng.choice(kinds)
        values = {"content": f"{kind} {rng.random()}"} if kind in ("user", "assistant", "system") else {}
        file.append(kind, **values)
        memory.apply({"kind": kind, **values})
    loaded, _ = file.load(Quiet())
    assert (loaded.system, loaded.turns) == (memory.system, memory.turns)
