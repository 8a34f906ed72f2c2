"""The loop of a conversation: read, act or answer, and say how it went."""

import sys

from llmrun.chat.reasoning import ReasoningSplitter
from llmrun.chat.session import SessionFile
from llmrun.cli.answering.display import Display
from llmrun.cli.answering.flow import default_reference
from llmrun.cli.answering.prompt import read_stdin
from llmrun.cli.answering.stream import Streamed, turn_line
from llmrun.cli.repl import values
from llmrun.cli.repl.commands import Again, Commands, Edit, report_error
from llmrun.cli.repl.lines import Leave, Prompter
from llmrun.cli.repl.talk import Talk, TalkSettings
from llmrun.cli.terminal import streams
from llmrun.cli.terminal.echo import no_echo
from llmrun.cli.terminal.reporting import StderrReport
from llmrun.errors import LlmrunError, UsageError
from llmrun.models.catalog import load_catalog


def converse(
    reference: str | None,
    session: SessionFile,
    settings: TalkSettings,
    *,
    system: str | None,
    resume: bool,
    plain: bool,
) -> int:
    """Hold the conversation; returns the exit status."""
    report = StderrReport()
    kept: dict[str, object] = session.load(report)[1] if resume else {}
    for key, value in kept.items():
        if key != "model" and isinstance(value, str):
            values.change(settings, key, value)
    reference = reference or (str(kept["model"]) if kept.get("model") else default_reference(load_catalog()))
    one_message = not streams.is_terminal(sys.stdin)
    text = read_stdin("utf-8").strip() if one_message else ""
    if one_message and not text:
        raise UsageError("standard input is empty", "without a terminal, chat answers one message")
    talk = Talk(reference, settings, session, report)
    _begin(talk, reference, system, resume)
    if one_message:
        talk.say(text)
        status = Turns(talk, plain=True).answer()
        talk.save_state()
        talk.wait()
        return status
    return Turns(talk, plain=plain).loop()


def _begin(talk: Talk, reference: str, system: str | None, resume: bool) -> None:
    if resume:
        n_tokens = talk.resume()
        turns = len(talk.conversation.turns)
        how = f"{n_tokens} tokens of KV state restored" if n_tokens else "the KV state is computed anew"
        streams.say(f"resumed {streams.shown(talk.session.name)}: {turns} turns, {how}")
        if talk.conversation.turns and talk.conversation.turns[-1].role == "user":
            streams.say("the last message has no answer: /retry asks it again")
    else:
        talk.session.append("session", model=reference)
        system = system if system is not None else str(talk.loading.found.defaults.get("system", ""))
    if system:
        talk.record("system", content=system)


class Turns:
    """Reads and answers until the user leaves."""

    def __init__(self, talk: Talk, *, plain: bool) -> None:
        self.talk = talk
        self.plain = plain
        self.commands = Commands(talk, streams.say)

    def loop(self) -> int:
        prompter = Prompter(self.commands.complete)
        start = ""
        while True:
            try:
                line = prompter.read(start)
                start = ""
                if line:
                    self._take(line)
            except Edit as wish:
                start = wish.text
            except Leave:
                self.talk.save_state()
                self.talk.wait()
                return 0
            except LlmrunError as error:
                report_error(error, streams.say)

    def _take(self, line: str) -> None:
        if line.startswith("/") and not line.startswith("//"):
            try:
                self.commands.run(line)
            except Again:
                self._answer_or_undo()
            return
        text = line[1:] if line.startswith("//") else line
        self.talk.say("\n\n".join([*self.commands.attached, text]))
        self.commands.attached.clear()
        self._answer_or_undo()

    def _answer_or_undo(self) -> None:
        """A message that cannot be answered is taken back, so that the next one is."""
        try:
            self.answer()
        except LlmrunError:
            self.talk.record("undo")
            raise
        self.talk.save_state()

    def answer(self) -> int:
        """One answer on the screen and in the session; returns the exit status it stands for."""
        talk = self.talk
        prompt = talk.prompt()
        splitter = ReasoningSplitter(talk.loading.info.chat_template or "", prompt.text)
        display = Display(splitter, talk.settings.reasoning, live=True, silent=False, markdown=not self.plain)
        with no_echo():
            try:
                streamed = talk.answer(prompt, display.control_tokens, display.feed)
            finally:
                display.finish()
        finished = streamed.finished
        if finished.reason == "error":
            raise LlmrunError(finished.error, finished.hint)
        talk.record("assistant", content=display.answer, reasoning=display.reasoning, finish_reason=finished.reason)
        self._remark(streamed)
        return 130 if finished.reason == "interrupted" else 0

    def _remark(self, streamed: Streamed) -> None:
        finished = streamed.finished
        remarks = {
            "length": f"cut at {len(finished.tokens)} tokens (max-tokens)",
            "context": "cut where the context ended",
            "interrupted": "stopped",
        }
        if finished.reason in remarks:
            streams.say(remarks[finished.reason])
        if not self.talk.settings.groups.output.quiet:
            streams.say(streams.dim(turn_line(finished, self.talk.engine.n_ctx_seq), sys.stderr))
