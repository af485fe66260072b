"""Lists of turns, which most formats share: how they are found in a cell, read, and checked."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from studio.core.text import text
from studio.data.containers.json_text import parse_json
from studio.data.conversation import Conversation, Message
from studio.data.formats.cells import BLANK, Values, is_blank, name_kind, read_optional, require, shorten
from studio.data.formats.roles import CALLERS, SPELLINGS, read_role
from studio.data.formats.tool_calls import check_calls, read_calls, read_tools
from studio.data.row import RowError

ROLE_KEYS = ("role", "from", "speaker")
CONTENT_KEYS = ("content", "value", "text", "message")
CALL_KEYS = ("tool_calls", "function_call")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
WEIGHT_KEYS = ("weight", "train")
"""Where files say with 0 or false that an answer is not to be learned."""
IMAGE_TYPES = ("image", "image_url", "input_image")
REPR_CHARACTERS = 2**20
"""Longer cells in Python's own notation are not read: its parser needs a hundred times their memory."""
TRANSCRIPT = re.compile(r"(?:\A|\n\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
"""How a talk written as one text begins each turn, as the sets of Glaive for function calling have it."""
SPEAKERS = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
TRANSCRIPT_END, TRANSCRIPT_SYSTEM = "<|endoftext|>", "SYSTEM: "
Part = Mapping[str, Any]


def find_turns(cell: object) -> Sequence[object] | None:
    """Return the list of turns in a cell; None when there is none.

    The list may be written as text (csv files): as JSON, in Python's notation, as pandas writes it, or as a
    transcript. One turn alone counts as a list of it.
    """
    if isinstance(cell, (list, tuple)):
        return cell
    if isinstance(cell, str):
        if cell.startswith("USER:") and "\n\nASSISTANT:" in cell.replace("\r\n", "\n"):
            return _part_transcript(cell.replace("\r\n", "\n"))
        start = cell.lstrip()[:2]
        if not start.startswith("[") or start not in ("[", "[{", "[ ", "[\n", "[\r", "[]"):
            return None
        cell = _parse(cell)
        return cell if isinstance(cell, list) else None
    return [cell] if isinstance(cell, Mapping) and is_turn(cell) else None


def _part_transcript(cell: str) -> list[Mapping[str, str]]:
    _, *parts = TRANSCRIPT.split(cell)
    return [
        {"role": SPEAKERS[speaker], "content": said.strip().removesuffix(TRANSCRIPT_END).rstrip()}
        for speaker, said in zip(parts[::2], parts[1::2], strict=True)
    ]


def _parse(cell: str) -> object:
    try:
        return parse_json(cell.encode("utf-8", "surrogatepass"))
    except ValueError:
        pass
    if len(cell) > REPR_CHARACTERS or not cell.lstrip().startswith("[{'"):
        return None
    try:
        return ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def is_turn(value: object) -> bool:
    """Return whether a value is an object with a role and words, or calls."""
    return (
        isinstance(value, Mapping)
        and any(key in value for key in ROLE_KEYS)
        and any(key in value for key in (*CONTENT_KEYS, *CALL_KEYS))
    )


def holds_turns(cell: object) -> bool:
    """Return whether a cell is a list of which at least one value is a turn."""
    turns = find_turns(cell)
    return bool(turns) and any(map(is_turn, turns))


def holds_turns_by(role_key: str) -> Any:
    """Return a check like holds_turns for turns that tell their role by `role_key`."""

    def holds(cell: object) -> bool:
        turns = find_turns(cell)
        return bool(turns) and any(is_turn(turn) and role_key in turn for turn in turns)

    return holds


def read_turns(values: Values, column: str, images: bool = False) -> list[Message]:
    """Return the turns of a cell as Messages; `images`: turns may hold images. Raises RowError."""
    cell = require(values, column)
    turns = cell if type(cell) is list else find_turns(cell)
    if turns is None:
        if isinstance(cell, str) and is_blank(cell):
            raise RowError("E122", text("data.row.blank", column=shorten(column)))
        raise RowError("E120", text("data.row.not_turns", column=shorten(column), found=name_kind(cell)))
    if not turns:
        raise RowError("E122", text("data.row.blank", column=shorten(column)))
    messages: list[Message] = []
    calls = False
    for number, turn in enumerate(turns, start=1):
        if type(turn) is dict and len(turn) == 2:  # The usual turn: two keys, a known role, words.
            content = turn.get("content")
            spelling = turn.get("role")
            if content is None:
                content, spelling = turn.get("value"), turn.get("from")
            if type(content) is str and content and content[0] not in BLANK and type(spelling) is str:
                role = SPELLINGS.get(spelling)
                if role is not None and role != "tool" and spelling not in CALLERS:
                    messages.append(Message(role, content))
                    continue
        message = _read_turn(number, turn, images)
        if message is not None:
            messages.append(message)
            calls = calls or message.role == "tool" or bool(message.tool_calls)
    if not messages:
        raise RowError("E122", text("data.row.blank", column=shorten(column)))
    if calls:
        check_calls(messages)
    return messages


def _read_turn(number: int, turn: object, images: bool) -> Message | None:
    """Return one turn; None for an empty system message, which says nothing."""
    if not isinstance(turn, Mapping):
        raise RowError("E120", text("data.row.turn_shape", number=number, found=name_kind(turn)))
    spelling = next((turn[key] for key in ROLE_KEYS if turn.get(key) is not None), None)
    if spelling is None:
        raise RowError("E120", text("data.row.turn_missing", number=number, key=_key_of(turn, ROLE_KEYS)))
    role = read_role(spelling)
    if role is None:
        raise RowError("E130", text("data.row.role", number=number, role=shorten(spelling, 40)))
    content_key = next((key for key in CONTENT_KEYS if turn.get(key) is not None), None)
    found = turn.get(content_key) if content_key else None
    written = next((turn[key] for key in CALL_KEYS if turn.get(key)), None)
    if written is None and str(spelling).strip().lower() in CALLERS:
        written, found = found, ""
        if written is None or (isinstance(written, str) and is_blank(written)):
            raise RowError("E140", text("data.row.call_shape", number=number))
    calls = read_calls(number, written) if written is not None else ()
    if content_key is None and not calls and role != "tool":
        if any(key in turn for key in CONTENT_KEYS):
            raise RowError("E121", text("data.row.turn_null", number=number))
        raise RowError("E120", text("data.row.turn_missing", number=number, key=_key_of(turn, CONTENT_KEYS)))
    content, parts, thoughts = _read_content(number, found, role == "tool", images)
    reasoning = _read_reasoning(number, turn) or thoughts if role == "assistant" else ""
    if is_blank(content) and not calls and not parts and role != "tool":
        if role == "system":
            return None
        raise RowError("E122", text("data.row.turn_blank", number=number))
    name = turn.get("name")
    call_id = turn.get("tool_call_id") if role == "tool" else None
    return Message(
        role,
        content,
        reasoning,
        calls,
        name if isinstance(name, str) else "",
        str(call_id) if call_id is not None else "",
        parts,
        role != "assistant" or not any(turn.get(key) == 0 for key in WEIGHT_KEYS),
    )


def _key_of(turn: Mapping[str, object], keys: Sequence[str]) -> str:
    """Return the key that a turn lacks, as its other key is spelled: `value` beside `from`."""
    sharegpt = "from" in turn or "value" in turn
    return keys[1] if sharegpt else keys[0]


def _read_reasoning(number: int, turn: Mapping[str, object]) -> str:
    found = next((turn[key] for key in REASONING_KEYS if turn.get(key)), "")
    if not isinstance(found, str):
        raise RowError("E120", text("data.row.turn_not_text", number=number, found=name_kind(found)))
    return "" if is_blank(found) else found


def _read_content(
    number: int, found: object, of_tool: bool, images: bool
) -> tuple[str, tuple[Part, ...], str]:
    """Return the words of a turn, its parts where one is an image, and thoughts that stand in parts of their own."""
    if found is None:
        return "", (), ""
    if isinstance(found, str):
        return found, (), ""
    if isinstance(found, (list, tuple)):
        read = _read_parts(found, images)
        if read is not None:
            return read
    if of_tool and isinstance(found, (list, tuple, Mapping, int, float)):
        return _write_json(found), (), ""
    raise RowError("E120", text("data.row.turn_not_text", number=number, found=name_kind(found)))


def _read_parts(found: Sequence[object], images: bool) -> tuple[str, tuple[Part, ...], str] | None:
    """Return what `_read_content` does of a list of parts; None when one of them is neither words nor an image."""
    words: list[str] = []
    thoughts: list[str] = []
    parts: list[Part] = []
    has_image = False
    for part in found:
        if isinstance(part, str):
            words.append(part)
            parts.append({"type": "text", "text": part})
            continue
        if not isinstance(part, Mapping):
            return None
        kind = part.get("type")
        if kind in ("thinking", "reasoning") and isinstance(part.get(kind, part.get("text")), str):
            thoughts.append(part.get(kind, part.get("text")))
        elif kind in IMAGE_TYPES and images:
            has_image = True
            parts.append({key: value for key, value in part.items() if value is not None})
        elif isinstance(part.get("text"), str) and kind not in IMAGE_TYPES:
            words.append(part["text"])
            parts.append({"type": "text", "text": part["text"]})
        else:
            return None
    return "".join(words), tuple(parts) if has_image else (), "\n".join(thoughts)


def _write_json(value: object) -> str:
    """Return a result of a function, which files also give as an object, in the words that a model reads."""
    try:
        return orjson.dumps(value, default=str).decode("utf-8")
    except TypeError as error:
        raise RowError("E120", text("data.row.result_shape")) from error


def read_chat(
    values: Values, mapping: Mapping[str, str], list_role: str, images: bool = False
) -> Conversation:
    """Return the Conversation of a column of turns with its columns beside: system, tools, reasoning.

    Raises RowError.
    """
    messages = read_turns(values, mapping[list_role], images)
    if len(mapping) == 1:
        return make_chat(messages)
    return finish_chat(values, mapping, messages)


def finish_chat(values: Values, mapping: Mapping[str, str], messages: list[Message]) -> Conversation:
    """Return the Conversation of `messages` and the columns beside: system, tools, reasoning. Raises RowError."""
    system = read_optional(values, mapping, "system").removeprefix(TRANSCRIPT_SYSTEM)
    messages = put_system_first(messages, system)
    messages = put_reasoning(messages, read_optional(values, mapping, "reasoning"))
    tools = read_tools(values, mapping["tools"]) if "tools" in mapping else ()
    return make_chat(messages, tools)


def make_chat(messages: Sequence[Message], tools: tuple[Mapping[str, Any], ...] = ()) -> Conversation:
    """Return the Conversation of `messages`. Raises RowError when no turn is an answer."""
    for message in messages:
        if message.role == "assistant":
            return Conversation(tuple(messages), "", "chat", tools)
    raise RowError("E131", text("data.row.no_answer"))


def put_system_first(messages: list[Message], system: str) -> list[Message]:
    """Return `messages` with the text of a system column in front, unless they begin with a system message."""
    if is_blank(system) or (messages and messages[0].role == "system"):
        return messages
    return [Message("system", system), *messages]


def put_reasoning(messages: list[Message], reasoning: str) -> list[Message]:
    """Return `messages` with `reasoning` in the last answer, unless that brings its own."""
    if is_blank(reasoning):
        return messages
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "assistant":
            if not messages[place].reasoning:
                messages[place] = messages[place]._replace(reasoning=reasoning)
            break
    return messages
