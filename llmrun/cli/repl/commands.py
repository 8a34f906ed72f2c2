"""The slash commands of a conversation."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

from llmrun import paths
from llmrun.chat.session import SessionFile, list_sessions
from llmrun.cli.repl import values
from llmrun.cli.repl.lines import Leave
from llmrun.cli.repl.talk import Talk
from llmrun.cli.terminal.streams import shown
from llmrun.engine.stats import measure
from llmrun.errors import LlmrunError, UsageError
from llmrun.report import size_text

SHOWN = ("info", "settings", "template", "system", "context", "stats")


class Again(Exception):
    """The command wants an answer to the conversation as it now is."""


class Edit(Exception):
    """The command wants the next message to begin with this text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Commands:
    """Runs what begins with a slash. Remarks go to `say`; `attached` files go into the next message."""

    def __init__(self, talk: Talk, say: Callable[[str], None]) -> None:
        self.talk = talk
        self.say = say
        self.attached: list[str] = []
        # name -> (function, arguments as help shows them, what it does)
        self.table: dict[str, tuple[Callable[[str], None], str, str]] = {
            "/help": (self.help, "", "this list (also /?)"),
            "/bye": (self.leave, "", "leave (also /exit, Ctrl-D)"),
            "/clear": (self.clear, "", "forget the conversation, keep the system message"),
            "/retry": (self.retry, "", "another answer to the same message"),
            "/undo": (self.undo, "", "forget the last message and its answer"),
            "/edit": (self.edit, "", "edit the last message and send it again (Ctrl-G: in $EDITOR)"),
            "/system": (self.system, "TEXT", "set the system message"),
            "/set": (self.set, "KEY VALUE", "change a setting; VALUE default gives it back"),
            "/show": (self.show, "|".join(SHOWN), "what is in force"),
            "/save": (self.save, "NAME", "name this session"),
            "/load": (self.load, "NAME", "go on with another session"),
            "/sessions": (self.sessions, "", "the sessions on this machine"),
            "/model": (self.model, "REF", "go on with another model"),
            "/file": (self.file, "PATH", "put a file in front of the next message"),
            "/think": (self.think, "on|off", "ask the model to reason, or not to"),
            "/json": (self.json, "SCHEMA|on|off", "answers in JSON"),
        }
        self.aliases = {"/?": "/help", "/exit": "/bye", "/quit": "/bye", "/resume": "/load"}

    def run(self, line: str) -> None:
        """Raises Leave, Again or Edit where the loop has to act; LlmrunError for what cannot be done."""
        name, _, argument = line.partition(" ")
        name = self.aliases.get(name, name)
        if name not in self.table:
            near = difflib.get_close_matches(name, [*self.table, *self.aliases], n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
            raise UsageError(f"there is no command {shown(name)}", f"{hint} (// sends a message that begins with /)")
        self.table[name][0](argument.strip())

    def complete(self, line: str) -> Iterable[tuple[str, int]]:
        """Continuations of a line that begins with a slash: (word, how many typed characters it replaces)."""
        name, space, argument = line.partition(" ")
        if not line.startswith("/") or "\n" in line:
            return
        if not space:
            yield from ((word + " ", len(name)) for word in self.table if word.startswith(name))
            return
        choices: dict[str, Callable[[], Iterable[str]]] = {
            "/set": values.names,
            "/show": lambda: SHOWN,
            "/load": lambda: [session.name for session in list_sessions()],
            "/think": lambda: ("on", "off"),
            "/json": lambda: ("on", "off"),
            "/model": self._models,
        }
        if name == "/file":
            yield from _paths(argument)
        elif name in choices:
            yield from ((word, len(argument)) for word in choices[name]() if word.startswith(argument))

    @staticmethod
    def _models() -> Iterable[str]:
        from llmrun.models.catalog import load_catalog

        return sorted(load_catalog().entries)

    def help(self, _argument: str) -> None:
        for name, (_, arguments, what) in self.table.items():
            self.say(f"{name + ' ' + arguments:<48}{what}" if len(arguments) < 40 else f"{name} {arguments}  {what}")
        self.say('"""  begins and ends a message of several lines; a backslash at the end of a line goes on.')
        self.say("Ctrl-C stops an answer or clears the line. Settings: " + ", ".join(values.names()))

    def leave(self, _argument: str) -> None:
        raise Leave

    def clear(self, _argument: str) -> None:
        self.talk.record("clear")
        self.attached.clear()
        self.say("cleared")

    def retry(self, _argument: str) -> None:
        if not self.talk.conversation.last_message:
            raise UsageError("there is no message to answer again")
        self.talk.retry()
        raise Again

    def undo(self, _argument: str) -> None:
        if not self.talk.conversation.turns:
            raise UsageError("there is nothing to undo")
        self.talk.record("undo")
        self.say("undone")

    def edit(self, _argument: str) -> None:
        last = self.talk.conversation.last_message
        if not last:
            raise UsageError("there is no message to edit")
        self.talk.record("undo")
        raise Edit(last)

    def system(self, argument: str) -> None:
        self.talk.record("system", content=argument.strip('"'))
        self.say("system message set" if argument else "no system message")

    def set(self, argument: str) -> None:
        name, _, value = argument.removeprefix("parameter ").partition(" ")
        if name == "system":
            self.system(value)
            return
        if not value:
            raise UsageError("/set takes a name and a value", "/set temp 0.2; /show settings shows what is in force")
        if values.change(self.talk.settings, name, value.strip()):
            self.talk.reopen()
        self.talk.session.append("set", key=name, value=value.strip())
        self.say(f"{name} {value.strip()}")

    def show(self, argument: str) -> None:
        if argument not in SHOWN:
            raise UsageError(f"/show takes {', '.join(SHOWN)}")
        for line in getattr(self, f"_show_{argument}")():
            self.say(shown(line))

    def _show_info(self) -> Iterable[str]:
        info, loading = self.talk.loading.info, self.talk.loading
        yield f"model    {loading.found.name} ({info.name or info.arch})"
        yield f"file     {loading.path}"
        yield f"size     {size_text(info.size_bytes)}, {info.n_params / 1e6:.0f}M parameters, {info.quant}"
        yield f"context  trained for {info.n_ctx_train} tokens"

    def _show_settings(self) -> Iterable[str]:
        for name, value in values.current(self.talk.settings):
            yield f"{name:<20}{value}"
        params = self.talk.params
        yield f"in force: temp {params.temp:g}, top-k {params.top_k}, top-p {params.top_p:g}, min-p {params.min_p:g}"

    def _show_template(self) -> Iterable[str]:
        return (self.talk.loading.info.chat_template or "none").splitlines()

    def _show_system(self) -> Iterable[str]:
        return (self.talk.conversation.system or "none").splitlines()

    def _show_context(self) -> Iterable[str]:
        engine, conversation = self.talk.engine, self.talk.conversation
        used = len(engine.resident())
        yield f"{used} of {engine.n_ctx_seq} tokens in the KV cache"
        yield f"{len(conversation.turns)} turns, {conversation.left_out} of them no longer in the prompt"
        how = "cells are shifted" if engine.context.can_shift else "recomputed: this architecture cannot shift"
        yield f"when full: {self.talk.settings.on_full} ({how})"

    def _show_stats(self) -> Iterable[str]:
        if self.talk.last is None:
            yield "no answer yet"
            return
        for name, value in measure(self.talk.last.finished)._asdict().items():
            yield f"{name:<14}{'-' if value is None else f'{value:.4g}'}"

    def save(self, argument: str) -> None:
        if argument:
            self.talk.wait()
            self.talk.session = self.talk.session.rename(argument)
        self.say(
            f"saved as {self.talk.session.name}; llmrun chat --resume '{self.talk.session.name}' goes on with it"
        )

    def load(self, argument: str) -> None:
        session = SessionFile.named(argument)
        self.talk.wait()
        conversation, _ = session.load(self.talk.report)
        self.talk.session, self.talk.conversation = session, conversation
        self.say(f"{len(conversation.turns)} turns of {session.name}")

    def sessions(self, _argument: str) -> None:
        found = list_sessions()
        for session in found:
            self.say(shown(session.name))
        if not found:
            self.say("none yet")

    def model(self, argument: str) -> None:
        if not argument:
            raise UsageError("/model takes a reference", "such as /model smollm2")
        self.talk.switch(argument)
        self.say(f"now {shown(self.talk.loading.found.name)}")

    def file(self, argument: str) -> None:
        from llmrun.cli.answering.prompt import read_file

        text = read_file(argument, "utf-8")
        self.attached.append(text.rstrip("\n"))
        self.say(f"{argument} ({len(text)} characters) goes in front of the next message")

    def think(self, argument: str) -> None:
        if argument not in ("on", "off"):
            raise UsageError("/think takes on or off")
        self.talk.settings.thinking = argument == "on"
        self.say(f"reasoning {argument}, where the template has a switch for it")

    def json(self, argument: str) -> None:
        from llmrun.cli.answering.wishes import grammar
        from llmrun.cli.options import ShapeOptions

        if argument not in ("on", "off") and not argument:
            raise UsageError("/json takes a schema (text or file), on or off")
        schema = None if argument in ("on", "off") else argument
        shape = ShapeOptions(json_schema=schema, json_object=argument == "on")
        grammar(shape)
        self.talk.settings.groups = self.talk.settings.groups._replace(shape=shape)
        self.say("answers are free text" if argument == "off" else "answers are JSON")


def _paths(start: str) -> Iterable[tuple[str, int]]:
    path = paths.expand(start) if start else Path()
    folder, begin = (path, "") if start.endswith(("/", "\\")) or not start else (path.parent, path.name)
    try:
        found = sorted(entry for entry in folder.iterdir() if entry.name.startswith(begin))
    except OSError:
        return
    for entry in found[:200]:
        yield entry.name + ("/" if entry.is_dir() else ""), len(begin)


def report_error(error: LlmrunError, say: Callable[[str], None]) -> None:
    """The error's two lines; the conversation goes on."""
    say(f"error: {shown(error.message)}")
    if error.hint:
        say(f"hint: {shown(error.hint)}")
