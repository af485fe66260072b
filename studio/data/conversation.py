"""The one shape that every format is turned into before it is rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """One example: messages (kinds `chat` and `completion`), or plain text (kind `text`)."""

    messages: tuple[Message, ...] = ()
    text: str = ""
    kind: Literal["chat", "completion", "text"] = "chat"
    """`completion`: a prompt and its completion, which without a chat template are joined as they are."""

    def with_system(self, prompt: str) -> Conversation:
        """Return this conversation with `prompt` in front as its system message, unless it has one or is plain text."""
        if not prompt or self.kind == "text" or any(message.role == "system" for message in self.messages):
            return self
        return Conversation(messages=(Message("system", prompt), *self.messages), kind=self.kind)

    @property
    def prompt_key(self) -> str:
        """What two examples share when they ask the same: all before the first answer, or the text itself."""
        if self.kind == "text":
            return self.text
        parts: list[str] = []
        for message in self.messages:
            if message.role == "assistant":
                break
            if message.role != "system":
                parts.append(f"{message.role}\0{message.content}")
        return "\0".join(parts)
