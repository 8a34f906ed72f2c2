"""`llmrun chat` in a real terminal, and off one."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmrun.chat.session import SessionFile, latest_session
from llmrun.report import Quiet
from tests.cli import LLMRUN, environment, llmrun
from tests.tiny import CHATML, tiny_gguf

pexpect = pytest.importorskip("pexpect", reason="a pseudo-terminal, which Windows does not have")
if sys.platform == "win32":
    pytest.skip("pexpect drives a terminal on Unix only", allow_module_level=True)

ANSI = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>]|\][^\x07]*\x07)")
STATS = r"ctx \d+/\d+"
PROMPT = r"\x1b\[\?2004h"  # bracketed paste on: a line can be typed


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, *args: object, env: dict[str, str | None] | None = None) -> None:
        command = [*LLMRUN, "chat", *map(str, args)]
        self.child: Any = pexpect.spawn(
            command[0],
            command[1:],
            env=environment({"TERM": "xterm", "NO_COLOR": None, "PROMPT_TOOLKIT_NO_CPR": "1", **(env or {})}),
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(40, 100),
            timeout=60,
        )
        self.expect(PROMPT)

    def expect(self, pattern: str) -> str:
        """Wait for the pattern; returns what came before and with it, without escape codes."""
        self.child.expect(pattern)
        return ANSI.sub("", self.child.before + self.child.after)

    def send(self, line: str) -> None:
        self.child.send(line + "\r")

    def ask(self, line: str) -> str:
        """Send a message and wait for the line of numbers and the next prompt."""
        self.send(line)
        shown = self.expect(STATS)
        self.expect(PROMPT)
        return shown

    def command(self, line: str, answer: str) -> str:
        self.send(line)
        shown = self.expect(answer)
        self.expect(PROMPT)
        return shown

    def leave(self) -> int:
        self.send("/bye")
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus)


def turns() -> list[tuple[str, str]]:
    conversation, _ = latest_session().load(Quiet())
    return [(turn.role, turn.content) for turn in conversation.turns]


FAST = ("-t", 1, "-n", 6, "--seed", 1, "--temp", 0, "--ignore-eos")


def test_a_conversation_is_kept_as_it_goes(tiny_model: Path) -> None:
    terminal = Terminal(tiny_model, *FAST)
    terminal.ask("first")
    terminal.ask("second")
    assert [role for role, _ in turns()] == ["user", "assistant", "user", "assistant"]
    terminal.command("/undo", "undone")
    assert [text for role, text in turns() if role == "user"] == ["first"]
    before = turns()[1]
    terminal.ask("/retry")
    assert turns()[0] == ("user", "first")
    assert len(turns()) == 2 and turns()[1][0] == before[0]
    terminal.command("/save my talk", "saved as my talk")
    assert latest_session().name == "my talk"
    assert terminal.leave() == 0


def test_several_lines_are_one_message(tiny_model: Path) -> None:
    terminal = Terminal(tiny_model, *FAST)
    terminal.send('"""one')
    terminal.expect(r"\.\.\.")
    terminal.ask('two"""')
    terminal.send("three \\")
    terminal.expect(r"\.\.\.")
    terminal.ask("four")
    terminal.child.send("\x1b[200~five\nsix\x1b[201~")
    terminal.ask("")
    terminal.ask("//slash")
    said = [text for role, text in turns() if role == "user"]
    assert said == ["one\ntwo", "three \nfour", "five\nsix", "/slash"]


def test_commands_say_what_is_wrong_and_go_on(tiny_model: Path, tmp_path: Path) -> None:
    terminal = Terminal(tiny_model, *FAST)
    assert "did you mean /clear" in terminal.command("/claer", "mean[^\n]*")
    terminal.command("/set temp warm", "takes a number")
    terminal.command("/set tmp 1", "did you mean temp")
    terminal.command("/load nothing", "no session")
    terminal.command("/file /no/such/file", "cannot read")
    terminal.command("/retry", "no message")
    terminal.command("/undo", "nothing to undo")
    terminal.command("/show nonsense", "/show takes")
    terminal.command("/json {bad", "error")
    terminal.command("/model no-such-model", "no model is called")
    terminal.command("/help", "/sessions")
    note = tmp_path / "note.txt"
    note.write_text("from a file\n")
    terminal.command(f"/file {note}", "goes in front")
    terminal.ask("go")
    assert turns()[0] == ("user", "from a file\n\ngo")


def test_settings_change_between_turns(tiny_model: Path) -> None:
    terminal = Terminal(tiny_model, *FAST)
    terminal.ask("hi")
    terminal.command("/set ctx 256", "ctx 256")
    assert "/256" in terminal.ask("again")
    terminal.command("/set parameter num_predict 2", "num_predict 2")
    assert "2 tok" in terminal.ask("more")
    terminal.command("/system Be brief", "system message set")
    terminal.command("/show system", "Be brief")
    assert "max-tokens" in terminal.command("/show settings", "in force")
    terminal.command("/json on", "answers are JSON")
    terminal.command("/json off", "free text")


def test_ctrl_c_stops_the_answer_only_then_leaves(tiny_model: Path) -> None:
    """INT-01"""
    terminal = Terminal(tiny_model, "-t", 1, "--ignore-eos", "-c", 2048)
    terminal.send("Write a very long story")
    time.sleep(1)
    terminal.child.sendintr()
    terminal.expect("stopped")
    terminal.expect(PROMPT)
    kept = turns()
    assert [role for role, _ in kept] == ["user", "assistant"] and kept[1][1]
    terminal.child.send("half a line")
    terminal.child.sendintr()
    terminal.child.sendintr()
    terminal.expect("again")
    terminal.child.sendintr()
    terminal.child.expect(pexpect.EOF)
    terminal.child.close()
    assert terminal.child.exitstatus in (0, 130)
    assert turns() == kept


def test_ctrl_d_leaves(tiny_model: Path) -> None:
    """INT-01"""
    terminal = Terminal(tiny_model, *FAST)
    terminal.child.sendeof()
    terminal.child.expect(pexpect.EOF)
    terminal.child.close()
    assert terminal.child.exitstatus == 0


def test_a_killed_chat_loses_nothing_and_resumes(tiny_model: Path) -> None:
    terminal = Terminal(tiny_model, *FAST)
    terminal.ask("first")
    time.sleep(0.5)  # the KV state is saved while the user reads
    terminal.child.send("/set max-tokens 500\r")
    terminal.expect(PROMPT)
    terminal.send("second")
    time.sleep(0.3)
    terminal.child.kill(signal.SIGKILL)
    terminal.child.close()
    said = [text for role, text in turns() if role == "user"]
    assert said == ["first", "second"]
    again = llmrun("chat", "--resume", *FAST, stdin=b"third")
    assert again.status == 0
    assert "KV state restored" in again.err
    assert [text for role, text in turns() if role == "user"] == ["first", "second", "third"]


def test_a_resumed_state_is_used_and_right(tiny_model: Path) -> None:
    first = ("chat", tiny_model, *FAST, "--session", "s")
    llmrun(*first, stdin=b"a first message of some length")
    restored = llmrun("chat", "--resume", "s", *FAST, "-n", 12, stdin=b"and another")
    assert re.search(r"cached [1-9]", restored.err), restored.err
    file = SessionFile.named("s")
    with_state = file.load(Quiet())[0].turns[-1].content
    for state in (Path(os.environ["LLMRUN_HOME"]) / "cache" / "prompts").glob("*.kv"):
        state.unlink()
    file.append("undo")
    fresh = llmrun("chat", "--resume", "s", *FAST, "-n", 12, stdin=b"and another")
    assert "computed anew" in fresh.err
    assert file.load(Quiet())[0].turns[-1].content == with_state


def test_each_turn_computes_only_what_is_new(tiny_model: Path) -> None:
    terminal = Terminal(tiny_model, *FAST)
    computed = []
    for turn in range(5):
        shown = terminal.ask(f"message number {turn}")
        computed.append(int(re.search(r"prompt (\d+) tok", shown)[1]))  # type: ignore[index]
    assert max(computed[1:]) <= computed[0] + 4
    assert max(computed[1:]) - min(computed[1:]) <= 2


@pytest.mark.parametrize("on_full", ["shift", "recompute"])
def test_a_full_context_lets_the_oldest_go_and_says_so(tiny_model: Path, on_full: str) -> None:
    """CTX-03"""
    terminal = Terminal(
        tiny_model,
        "-c",
        512,
        "--system",
        "Always end with OK",
        "--on-full",
        on_full,
        "-t",
        1,
        "-n",
        20,
        "--ignore-eos",
    )
    noticed = 0
    for turn in range(8):
        shown = terminal.ask(f"{turn} " + "word " * 18)
        noticed += "left the prompt" in shown.replace("\r\n", "")
    assert noticed
    assert "Always end with OK" in terminal.command("/show system", "OK")
    assert "no longer in the prompt" in terminal.command("/show context", "when full")
    terminal.command("/clear", "cleared")
    assert "left the prompt" not in terminal.ask("after")
    assert terminal.leave() == 0


def test_on_full_stop_ends_instead(tiny_model: Path) -> None:
    """CTX-03"""
    terminal = Terminal(tiny_model, "-c", 256, "--on-full", "stop", "-t", 1, "-n", 10, "--ignore-eos")
    for turn in range(9):
        terminal.send(f"{turn} " + "word " * 12)
        if "full" in terminal.expect(f"{STATS}|is full"):
            break
        terminal.expect(PROMPT)
    else:
        raise AssertionError("the context never filled up")


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    """TPL-01"""
    model = tiny_gguf(tmp_path / "base.gguf", template=None)
    llmrun("chat", model, stdin=b"Hello").failed(1, "no chat template", "--template")
    named = llmrun("chat", model, "--template", "chatml", *FAST, stdin=b"Hello")
    assert named.status == 0


def test_a_template_that_wants_turns_to_alternate_after_a_stopped_answer(tmp_path: Path) -> None:
    """TPL-02"""
    strict = (
        "{% if messages[0].role=='system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{% if (m.role=='user') != (loop.index0%2==0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}[{{m.role}}]{{m.content}}{% endfor %}"
    )
    model = tiny_gguf(tmp_path / "strict.gguf", template=strict)
    terminal = Terminal(model, "--system", "Be brief", *FAST)
    terminal.ask("one")
    SessionFile(latest_session().path).append("user", content="asked, never answered")
    assert terminal.leave() == 0
    resumed = llmrun("chat", "--resume", *FAST, stdin=b"two")
    assert resumed.status == 0, resumed.err
    assert "no answer" in resumed.err


def test_without_a_terminal_standard_input_is_one_message(tiny_model: Path) -> None:
    result = llmrun("chat", tiny_model, *FAST, "--plain", stdin=b"line one\nline two\n")
    assert result.status == 0
    assert [role for role, _ in turns()] == ["user", "assistant"]
    assert turns()[0] == ("user", "line one\nline two")
    assert result.text == turns()[1][1]
    llmrun("chat", tiny_model, stdin=b" \n").failed(2, "empty")


def test_export_and_listing(tiny_model: Path) -> None:
    llmrun("chat", tiny_model, *FAST, "--session", "talk", stdin=b"hello")
    assert llmrun("chat", "--sessions").text == "talk\n"
    assert llmrun("chat", "--export", "md", "talk").text.startswith("## user\n\nhello\n")
    exported = json.loads(llmrun("chat", "--export", "json").text)
    assert exported["messages"][0] == {"role": "user", "content": "hello"}
    llmrun("chat", "--resume", "--session", "none", stdin=b"x").failed(1, "no session")


def test_markdown_loses_no_text_and_survives_a_resize(tmp_path: Path) -> None:
    text = (
        "# Title\\n\\n- one <b>bold</b> [link](http://x.y)\\n- 日本語 🎉\\n\\n```python\\nprint(1)\\n```\\n\\nlast "
        + "w" * 130
    )
    grammar = tmp_path / "g.gbnf"
    grammar.write_text(f'root ::= "{text}"\n', encoding="utf-8")
    model = tiny_gguf(tmp_path / "m.gguf", template=CHATML, n_ctx_train=4096)
    terminal = Terminal(model, "--grammar", grammar, "-t", 1)
    terminal.send("go")
    terminal.child.setwinsize(20, 40)
    shown = terminal.expect(STATS)
    flat = re.sub(r"\s+", "", shown)
    for part in ("Title", "<b>bold</b>", "http://x.y", "日本語", "🎉", "print(1)"):
        assert part in flat, shown
    assert flat.count("w") >= 130


def test_run_on_a_terminal_without_a_prompt_is_chat(tiny_model: Path) -> None:
    child = pexpect.spawn(
        LLMRUN[0],
        [*LLMRUN[1:], "run", str(tiny_model)],
        env=environment({"TERM": "xterm"}),
        encoding="utf-8",
        timeout=60,
    )
    child.expect(PROMPT)
    child.send("/bye\r")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
