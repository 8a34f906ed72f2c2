"""A conversation on disk: JSON lines, appended as things happen, so that a crash loses nothing that was said."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmrun import paths
from llmrun.chat.conversation import Conversation, Message
from llmrun.errors import NotFoundError, UsageError
from llmrun.report import Report

NAME = re.compile(r"[\w][\w .@+-]{0,99}", re.ASCII)
VERSION = 1


def sessions_dir() -> Path:
    return paths.state_dir() / "sessions"


@dataclass(frozen=True)
class SessionFile:
    """One session: a file of records. It appears with its first record."""

    path: Path

    @classmethod
    def named(cls, name: str) -> "SessionFile":
        """Raises UsageError for a name that could not be a file's on every system."""
        if not NAME.fullmatch(name) or name.endswith((" ", ".")):
            raise UsageError(f"'{name}' cannot name a session", "use letters, digits, space and . _ @ + -")
        return cls(sessions_dir() / f"{name}.jsonl")

    @classmethod
    def fresh(cls) -> "SessionFile":
        """A new one, named after the time of day."""
        stamp = datetime.now().strftime("%Y-%m-%d %H.%M.%S")
        for suffix in ("", *(f" {n}" for n in range(2, 1000))):
            path = sessions_dir() / f"{stamp}{suffix}.jsonl"
            if not path.exists():
                return cls(path)
        raise UsageError("too many sessions in one second")

    @property
    def name(self) -> str:
        return self.path.stem

    def append(self, kind: str, **values: Any) -> None:
        """Write one record, on disk before this returns."""
        record = {"kind": kind, "at": datetime.now(UTC).isoformat(timespec="seconds"), **values}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with self.path.open("a+b") as file:
            if not fresh and _unfinished(file):
                file.write(b"\n")  # a record cut short by a crash stays a line of its own
            file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self, report: Report) -> Iterator[dict[str, Any]]:
        """Every record that can be read; damaged lines are reported by number and passed over.

        Raises NotFoundError where there is no such session."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise NotFoundError(f"there is no session '{self.name}'", "llmrun chat --sessions lists them") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
                    raise ValueError("no record")
            except ValueError:
                report.note(f"{self.path.name}, line {number} is damaged and was left out")
                continue
            yield record

    def load(self, report: Report) -> tuple[Conversation, dict[str, Any]]:
        """The conversation, and what the session says of model and settings (the last word wins)."""
        conversation, settings = Conversation(), dict[str, Any]()
        for record in self.records(report):
            if record["kind"] in ("session", "model"):
                settings |= {key: record[key] for key in ("model",) if isinstance(record.get(key), str)}
            if record["kind"] == "set" and isinstance(record.get("key"), str):
                settings[record["key"]] = record.get("value")
            try:
                conversation.apply(record)
            except ValueError as error:
                report.note(f"{self.path.name}: a record was left out: {error}")
        return conversation, settings

    def rename(self, name: str) -> "SessionFile":
        """Give the session a name. Raises UsageError where another session has it."""
        target = SessionFile.named(name)
        if target.path == self.path:
            return self
        if target.path.exists():
            raise UsageError(f"there is a session '{name}' already")
        if self.path.exists():
            self.path.rename(target.path)
        return target


def _unfinished(file: Any) -> bool:
    file.seek(0, os.SEEK_END)
    if file.tell() == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) != b"\n")


def list_sessions() -> list[SessionFile]:
    """All sessions, the latest used first."""
    files = sessions_dir().glob("*.jsonl")
    return [SessionFile(path) for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)]


def latest_session() -> SessionFile:
    """Raises NotFoundError where there is none."""
    found = list_sessions()
    if not found:
        raise NotFoundError("there is no session to resume yet", "llmrun chat MODEL begins one")
    return found[0]


def export(conversation: Conversation, form: str) -> str:
    """The conversation as Markdown or JSON, with everything that was left out of the prompt."""
    system = [Message("system", conversation.system)] if conversation.system else []
    messages = system + conversation.turns
    if form == "md":
        return "\n".join(f"## {message.role}\n\n{message.content}\n" for message in messages)
    if form == "json":
        listed = [
            {"role": m.role, "content": m.content} | ({"reasoning": m.reasoning} if m.reasoning else {})
            for m in messages
        ]
        return json.dumps({"messages": listed}, ensure_ascii=False, indent=2) + "\n"
    raise UsageError(f"--export {form} is neither md nor json")
