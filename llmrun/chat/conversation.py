"""What is said in a conversation. Knows nothing of templates or tokens."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Message:
    """One turn. `reasoning` is what an assistant thought before `content`; other roles have none."""

    role: Role
    content: str
    reasoning: str = ""
