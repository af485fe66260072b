"""Lists of turns, which the messages and the ShareGPT format share: roles and their spellings, contents, checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.core.text import text
from studio.data.containers.container import parse_json
from studio.data.conversation import Conversation, Message, Role
from studio.data.formats.format import Mapped, Values, share
from studio.data.row import RowError

LIST_NAMES = ("messages", "conversations", "conversation", "dialog", "dialogue")
SPELLINGS: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}


def prove_turns(
    column: str, sample: Sequence[Values], role_key: Sequence[str], content_key: Sequence[str]
) -> float:
    """Return the share of rows whose cell is a list of objects that have one of both keys each; -1 when none has."""

    def holds(values: Values) -> bool:
        turns = find_turns(values.get(column))
        return bool(turns) and all(
            isinstance(turn, Mapping)
            and any(k in turn for k in role_key)
            and any(k in turn for k in content_key)
            for turn in turns
        )

    return share(sample, holds) or -1.0


def find_turns(cell: object) -> Sequence[object] | None:
    """Return the list of turns in a cell, which may be written as JSON (csv files); None when there is none."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = parse_json(cell.encode("utf-8"))
        except ValueError:
            return None
    return cell if isinstance(cell, Sequence) and not isinstance(cell, str) else None


def read_turns(
    values: Values, column: str, role_keys: Sequence[str], content_keys: Sequence[str]
) -> list[Message]:
    """Return the turns of a cell as Messages. Raises RowError."""
    if column not in values:
        raise RowError("E120", text("data.row.missing", column=column))
    if values[column] is None:
        raise RowError("E121", text("data.row.null", column=column))
    turns = find_turns(values[column])
    if turns is None:
        raise RowError("E120", text("data.row.not_turns", column=column))
    if not turns:
        raise RowError("E122", text("data.row.blank", column=column))
    messages = []
    for number, turn in enumerate(turns, start=1):
        message = _read_turn(number, turn, role_keys, content_keys)
        if message is not None:
            messages.append(message)
    return messages


def _read_turn(
    number: int, turn: object, role_keys: Sequence[str], content_keys: Sequence[str]
) -> Message | None:
    """Return one turn; None for an empty system message, which says nothing."""
    if not isinstance(turn, Mapping):
        raise RowError("E120", text("data.row.turn_shape", number=number))
    role_key = next((key for key in role_keys if turn.get(key) is not None), None)
    if role_key is None:
        raise RowError("E120", text("data.row.turn_missing", number=number, key=role_keys[0]))
    role = SPELLINGS.get(str(turn[role_key]).strip().lower())
    if role is None:
        raise RowError("E130", text("data.row.role", number=number, role=str(turn[role_key])[:40]))
    if turn.get("tool_calls") or turn.get("function_call"):
        raise RowError("E140", text("data.row.tool_calls", number=number))
    content_key = next((key for key in content_keys if key in turn), None)
    if content_key is None:
        raise RowError("E120", text("data.row.turn_missing", number=number, key=content_keys[0]))
    content = _read_content(number, turn[content_key])
    if content.strip():
        return Message(role, content)
    if role == "system":
        return None
    raise RowError("E122", text("data.row.turn_blank", number=number))


def _read_content(number: int, content: object) -> str:
    """Return the words of a turn: a string, or a list of parts of the type text."""
    if content is None:
        raise RowError("E121", text("data.row.turn_null", number=number))
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if all(isinstance(part, str) for part in parts):
            return "".join(parts)
    raise RowError("E120", text("data.row.turn_not_text", number=number))


def make_chat(messages: Sequence[Message]) -> Conversation:
    """Return the Conversation of `messages`. Raises RowError when no turn is an answer."""
    if not any(message.role == "assistant" for message in messages):
        raise RowError("E131", text("data.row.no_answer"))
    return Conversation(messages=tuple(messages))


def put_system_first(messages: list[Message], system: str) -> list[Message]:
    """Return `messages` with the text of a system column in front, unless they begin with a system message."""
    if not system or (messages and messages[0].role == "system"):
        return messages
    return [Message("system", system), *messages]


def make_reader(list_role: str, role_keys: Sequence[str], content_keys: Sequence[str]):
    """Return the `read` of a format whose column `list_role` holds turns with these keys."""

    def read(values: Values, mapping: Mapped) -> Conversation:
        messages = read_turns(values, mapping[list_role], role_keys, content_keys)
        system = values.get(mapping["system"]) if "system" in mapping else None
        return make_chat(put_system_first(messages, system if isinstance(system, str) else ""))

    return read


def make_proof(list_role: str, role_keys: Sequence[str], content_keys: Sequence[str]):
    """Return the `prove` of a format whose column `list_role` holds turns with these keys."""

    def prove(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
        return prove_turns(mapping[list_role], sample, role_keys, content_keys)

    return prove
