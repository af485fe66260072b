"""The one shape that every format is turned into before it is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
Kind = Literal["chat", "completion", "text", "preference", "kto", "rl", "vision", "tokens"]
TRAINABLE: tuple[Kind, ...] = ("chat", "completion", "text", "tokens", "preference", "kto", "rl")
"""The kinds that the studio's objectives learn from today; the others are understood, checked and shown."""


class ToolCall(NamedTuple):
    """One call that an answer makes."""

    name: str
    arguments: Mapping[str, Any]
    """Always an object, whatever the file had (many write it as JSON in a string)."""
    id: str = ""


class Message(NamedTuple):
    """One turn; a named tuple, since several are made for each of millions of rows."""

    role: Role
    content: str
    """The words of all parts joined, where the file had a list of parts."""
    reasoning: str = ""
    """What an answer thought before it spoke."""
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""
    """The function that a tool message answers for, or the speaker's name."""
    call_id: str = ""
    """Which ToolCall a tool message answers."""
    parts: tuple[Mapping[str, Any], ...] = ()
    """Content parts as the file had them, where one of them is an image; else empty."""
    weight: float = 1.0
    """How much an answer counts; 0 for one that the file keeps out of training: `weight` is 0, `train` false."""

    @property
    def learned(self) -> bool:
        """Whether the answer is learned at all."""
        return self.weight != 0

    def to_dict(self) -> dict[str, Any]:
        """Return the message as chat templates and the `data` command have it; keys that hold nothing are left out."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = [
                {
                    "type": "function",
                    "id": call.id,
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in self.tool_calls
            ]
        if self.name:
            found["name"] = self.name
        if self.call_id:
            found["tool_call_id"] = self.call_id
        if self.parts:
            found["parts"] = [dict(part) for part in self.parts]
        if self.weight != 1:
            found["weight"] = self.weight
        return found


def read_message(found: Mapping[str, Any]) -> Message:
    """Return the Message that `to_dict` wrote."""
    return Message(
        found["role"],
        found["content"],
        found.get("reasoning_content", ""),
        tuple(
            ToolCall(call["function"]["name"], call["function"]["arguments"], call.get("id", ""))
            for call in found.get("tool_calls", ())
        ),
        found.get("name", ""),
        found.get("tool_call_id", ""),
        tuple(found.get("parts", ())),
        found.get("weight", 1.0),
    )


class Conversation(NamedTuple):
    """One example. Which fields hold something depends on `kind`."""

    messages: tuple[Message, ...] = ()
    """chat, vision: all turns; completion: prompt and completion; preference, kto, rl: the prompt (kto: and answer)."""
    text: str = ""
    """text: the document."""
    kind: Kind = "chat"
    """`completion`: a prompt and its completion, which without a chat template are joined as they are."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of the functions that answers may call (JSON schema, as chat templates take them)."""
    chosen: tuple[Message, ...] = ()
    """preference: the better answer; the last turns of a conversation that begins with `messages`."""
    rejected: tuple[Message, ...] = ()
    label: bool | None = None
    """kto: whether the answer is a good one."""
    extras: Mapping[str, Any] = {}
    """rl: further columns, which are passed on by name."""
    images: tuple[str, ...] = ()
    """vision: paths of image files, or "row:COLUMN" for bytes that stand in the row."""
    token_ids: tuple[int, ...] = ()
    """tokens: the ids."""
    labels: tuple[int, ...] = ()
    """tokens: what is learned at each place, -100 where nothing is; empty: every token."""
    weights: tuple[float, ...] = ()
    """tokens: how much each counts, above 0 where it is learned; empty: each once."""

    @property
    def sides(self) -> tuple[Conversation, ...]:
        """preference: the talk with the better and with the worse answer; else this one alone."""
        if not self.rejected:
            return (self,)
        return self._replace(rejected=()), self._replace(chosen=self.rejected, rejected=())

    def as_prompt(self) -> Conversation:
        """Return what the model is asked: all before the last answer, which goes on as `answer`; an rl row itself."""
        if self.kind == "rl" or not self.messages or self.messages[-1].role != "assistant":
            return self._replace(kind="rl")
        answer = self.messages[-1].content
        return self._replace(kind="rl", messages=self.messages[:-1], extras={**self.extras, "answer": answer})

    def with_system(self, prompt: str) -> Conversation:
        """Return this conversation with `prompt` in front as its system message, unless it has one or has no turns."""
        if not prompt or not self.messages or any(message.role == "system" for message in self.messages):
            return self
        return self._replace(messages=(Message("system", prompt), *self.messages))

    @property
    def prompt_key(self) -> str:
        """What two examples share when they ask the same: all before the first answer, or the text itself.

        Where an answer comes first, nothing is asked: then it is that answer.
        """
        if self.kind == "text":
            return self.text
        if self.kind == "tokens":
            return " ".join(map(str, self.token_ids))
        parts: list[str] = []
        for message in self.messages:
            if message.role == "assistant":
                return "\0".join(parts) or f"assistant\0{message.content}"
            if message.role != "system" and message.content:
                parts.append(f"{message.role}\0{message.content}")
        return "\0".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return what the shards hold: `kind` and the fields that hold something."""
        found: dict[str, Any] = {"kind": self.kind}
        if self.messages:
            found["messages"] = [message.to_dict() for message in self.messages]
        if self.text:
            found["text"] = self.text
        if self.tools:
            found["tools"] = list(self.tools)
        if self.chosen:
            found["chosen"] = [message.to_dict() for message in self.chosen]
            found["rejected"] = [message.to_dict() for message in self.rejected]
        if self.label is not None:
            found["label"] = self.label
        if self.extras:
            found["extras"] = dict(self.extras)
        if self.images:
            found["images"] = list(self.images)
        if self.token_ids:
            found["token_ids"] = list(self.token_ids)
        if self.labels:
            found["labels"] = list(self.labels)
        if self.weights:
            found["weights"] = list(self.weights)
        return found


def read_stored(found: Mapping[str, Any]) -> Conversation:
    """Return the Conversation that `to_dict` wrote."""

    def turns(name: str) -> tuple[Message, ...]:
        return tuple(map(read_message, found.get(name, ())))

    return Conversation(
        messages=turns("messages"),
        text=found.get("text", ""),
        kind=found["kind"],
        tools=tuple(found.get("tools", ())),
        chosen=turns("chosen"),
        rejected=turns("rejected"),
        label=found.get("label"),
        extras=found.get("extras", {}),
        images=tuple(found.get("images", ())),
        token_ids=tuple(found.get("token_ids", ())),
        labels=tuple(found.get("labels", ())),
        weights=tuple(found.get("weights", ())),
    )
