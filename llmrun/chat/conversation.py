"""What is said in a conversation. Knows nothing of templates or tokens."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Role = Literal["system", "user", "assistant"]


class Message(NamedTuple):
    """One turn. `reasoning` is what an assistant thought before `content`; other roles have none."""

    role: Role
    content: str
    reasoning: str = ""


@dataclass
class Conversation:
    """A system message and the turns after it.

    Its history is a list of records, one for each thing that happened; `apply` is the only way it changes, so that
    replaying the records of a session file gives the conversation back.
    """

    system: str = ""
    turns: list[Message] = field(default_factory=list)
    left_out: int = 0  # leading turns that no longer go into the prompt, since the context was full

    def apply(self, record: dict[str, Any]) -> None:
        """Take in one record; kinds that say nothing about messages pass by. Raises ValueError for a bad one."""
        kind = record.get("kind")
        if kind == "system":
            self.system = _text(record, "content")
        elif kind == "user":
            self.turns.append(Message("user", _text(record, "content")))
        elif kind == "assistant":
            self._answer(Message("assistant", _text(record, "content"), _text(record, "reasoning", "")))
        elif kind == "undo":
            self._undo()
        elif kind == "retry":
            self._forget_answer()
        elif kind == "clear":
            self.turns.clear()
            self.left_out = 0

    def _answer(self, message: Message) -> None:
        if not self.turns or self.turns[-1].role != "user":
            raise ValueError("an answer to no message")
        self.turns.append(message)

    def _undo(self) -> None:
        """Forget the last message and its answer."""
        self._forget_answer()
        if self.turns:
            self.turns.pop()
        self.left_out = min(self.left_out, len(self.turns))

    def _forget_answer(self) -> None:
        if self.turns and self.turns[-1].role == "assistant":
            self.turns.pop()

    @property
    def last_message(self) -> str:
        """What the user said last, empty where nothing was said."""
        return next((turn.content for turn in reversed(self.turns) if turn.role == "user"), "")

    @property
    def messages(self) -> list[Message]:
        """What goes into the prompt: the system message always, then the turns that are not left out."""
        system = [Message("system", self.system)] if self.system else []
        return system + self.turns[self.left_out :]

    def leave_out_oldest(self) -> str:
        """Take the oldest exchange out of the prompt and return its message, empty where only the last remains."""
        rest = self.turns[self.left_out :]
        ends = [i for i, turn in enumerate(rest) if turn.role == "user"]
        if len(ends) < 2:
            return ""
        self.left_out += ends[1]
        return rest[0].content


def _text(record: dict[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"'{record.get('kind')}' without text in '{key}'")
    return value
