"""Lists of turns, which most formats share: how they are found in a cell, read, and checked."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from studio.core.i18n import text
from studio.data.containers.json_text import parse_json
from studio.data.conversation import Conversation, Message
from studio.data.formats.aliases import ANSWERS, EXPECTED, HISTORY
from studio.data.formats.cells import BLANK, Values, is_blank, name_kind, read_optional, require, shorten
from studio.data.formats.column_names import simplify
from studio.data.formats.content_parts import ATTACHED, is_placeholder, read_content, refuse_attached
from studio.data.formats.context import read_thoughts
from studio.data.formats.flags import check_mask, weigh
from studio.data.formats.roles import CALLERS, SPELLINGS, read_role
from studio.data.formats.tool_calls import check_calls, read_calls, read_tools
from studio.data.row import RowError
from studio.data.row_codes import RowCode

ROLE_KEYS = ("role", "from", "speaker")
CONTENT_KEYS = ("content", "value", "text", "message", "parts", "refusal")
CALL_KEYS = ("tool_calls", "function_call")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
LEADS = BLANK | {"<"}
ENDS = frozenset(">\n")
"""With these signs words begin or end that are looked at closely: they may say nothing, or stand for an image."""
REPR_CHARACTERS = 2**20
"""Longer cells in Python's own notation are not read: its parser needs a hundred times their memory."""
TRANSCRIPT = re.compile(r"(?:\A|\n\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
"""How a talk written as one text begins each turn, as the sets of Glaive for function calling have it."""
FEWEST_OPEN = 8
"""Of fewer talks nothing is said by all of them ending with a question."""
SPEAKERS = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
TRANSCRIPT_END, TRANSCRIPT_SYSTEM = "<|endoftext|>", "SYSTEM: "


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


def doubt_open(columns: Sequence[str], mapping: Mapping[str, str], sample: Sequence[Values]) -> float:
    """Return 0.5 where talks hold no answer, or hardly one and another column does; 0.3 where all end with a question.

    What would be learned of such talks are the answers before the one that is asked for.
    """
    if any(ends_open(column, sample) for column in mapping.values()):
        return 0.5 if any(are_unanswered(column, sample) for column in mapping.values()) else 0.3
    if not any(simplify(name) in (*ANSWERS, *EXPECTED) for name in columns if name not in mapping.values()):
        return 0.0
    found = [find_turns(row.get(column)) for row in sample[:50] for column in mapping.values()]
    talks = [turns for turns in found if turns and is_turn(turns[0])]
    answered = sum(any(isinstance(turn, Mapping) and _is_answer(turn) for turn in turns) for turns in talks)
    return 0.5 if talks and answered < 0.1 * len(talks) else 0.0


def ends_open(column: str, sample: Sequence[Values]) -> bool:
    """Return whether a column holds talks that all end with a question, most behind answers to others, or none."""
    found = [find_turns(row.get(column)) for row in sample[:50]]
    talks = [turns for turns in found if turns and all(map(is_turn, turns))]
    if len(talks) < FEWEST_OPEN or not all(_name_role(turns[-1]) == "user" for turns in talks):
        return False
    answered = sum(any(map(_is_answer, turns)) for turns in talks)
    # Where none is answered, a word to the model in front says that it is to answer.
    told = not answered and all(_name_role(turns[0]) == "system" for turns in talks)
    return told or 2 * answered > len(talks)


def are_unanswered(column: str, sample: Sequence[Values]) -> bool:
    """Return whether no talk of a column holds an answer."""
    found = [find_turns(row.get(column)) or () for row in sample[:50]]
    return not any(is_turn(turn) and _is_answer(turn) for turns in found for turn in turns)


def adopt_turns(role: str, role_key: str) -> Any:
    """Return a finder, as Format.adopt, of the only column that holds answered talks whose turns have `role_key`."""

    def adopt(columns: Sequence[str], sample: Sequence[Values]) -> dict[str, str]:
        free = [name for name in columns if simplify(name) not in HISTORY]
        found = [name for name in free if any(holds_turns(row.get(name)) for row in sample[:50])]
        return {role: found[0]} if len(found) == 1 and _are_answered(found[0], role_key, sample[:50]) else {}

    return adopt


def _are_answered(name: str, role_key: str, rows: Sequence[Values]) -> bool:
    """Return whether most cells of a column are talks that hold an answer."""
    talks = [find_turns(row.get(name)) or () for row in rows]
    turns = [[turn for turn in talk if isinstance(turn, Mapping) and role_key in turn] for talk in talks]
    return bool(rows) and 2 * sum(any(map(_is_answer, one)) for one in turns) > len(rows)


def _is_answer(turn: Mapping[str, object]) -> bool:
    return _name_role(turn) == "assistant"


def _name_role(turn: Mapping[str, object]) -> str | None:
    return read_role(next((turn[key] for key in ROLE_KEYS if turn.get(key) is not None), None))


def read_turns(values: Values, column: str, images: bool = False) -> list[Message]:
    """Return the turns of a cell as Messages; `images`: turns may hold images. Raises RowError."""
    cell = require(values, column)
    turns = cell if type(cell) is list else find_turns(cell)
    if turns is None:
        if isinstance(cell, str) and is_blank(cell):
            raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column)))
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.not_turns", column=shorten(column), found=name_kind(cell))
        )
    if not turns:
        raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column)))
    messages: list[Message] = []
    calls = False
    for number, turn in enumerate(turns, start=1):
        if type(turn) is dict and len(turn) == 2:  # The usual turn: two keys, a known role, words.
            content = turn.get("content")
            spelling = turn.get("role")
            if content is None:
                content, spelling = turn.get("value"), turn.get("from")
            if type(content) is str and content and content[0] not in LEADS and type(spelling) is str:
                role = SPELLINGS.get(spelling)
                if (
                    role is not None
                    and role != "tool"
                    and spelling not in CALLERS
                    and content[-1] not in ENDS
                ):
                    messages.append(Message(role, content))
                    continue
        if type(turn) is dict and "mask" in turn:
            check_mask(number, turns)
        for message in _read_turn(number, turn, images):
            messages.append(message)
            calls = calls or message.role == "tool" or bool(message.tool_calls)
    if not messages:
        raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column)))
    if calls:
        check_calls(messages)
    return messages


def _read_turn(number: int, turn: object, images: bool) -> list[Message]:
    """Return one turn, behind the results of calls that stand in its parts; [] for an empty system message."""
    if not isinstance(turn, Mapping):
        raise RowError(RowCode.WRONG_SHAPE, text("data.row.turn_shape", number=number, found=name_kind(turn)))
    spelling = next((turn[key] for key in ROLE_KEYS if turn.get(key) is not None), None)
    if spelling is None:
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.turn_missing", number=number, key=_key_of(turn, ROLE_KEYS))
        )
    role = read_role(spelling)
    if role is None:
        raise RowError(RowCode.UNKNOWN_ROLE, text("data.row.role", number=number, role=shorten(spelling, 40)))
    content_key = next((key for key in CONTENT_KEYS if turn.get(key) not in (None, [])), None)
    found = turn.get(content_key) if content_key else turn.get("content")
    written = next((turn[key] for key in CALL_KEYS if turn.get(key)), None)
    if written is None and str(spelling).strip().lower() in CALLERS:
        written, found = found, ""
        if written is None or (isinstance(written, str) and is_blank(written)):
            raise RowError(RowCode.BAD_TOOL_CALL, text("data.row.call_shape", number=number))
    calls = read_calls(number, written) if written is not None else ()
    if content_key is None and found is None and not calls and role != "tool":
        if any(key in turn for key in CONTENT_KEYS):
            raise RowError(RowCode.NULL, text("data.row.turn_null", number=number))
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.turn_missing", number=number, key=_key_of(turn, CONTENT_KEYS))
        )
    if not images and not ATTACHED.keys().isdisjoint(turn):
        refuse_attached(number, turn)
    content, parts, thoughts, called, results, weight = read_content(number, found, role == "tool", images)
    if not images and role in ("user", "system") and is_placeholder(content):
        raise RowError(
            RowCode.BAD_IMAGE, text("data.row.placeholder", number=number, sign=shorten(content.strip(), 24))
        )
    reasoning = _read_reasoning(number, turn) or thoughts if role == "assistant" else ""
    calls += called
    if is_blank(content) and not calls and not parts and (role != "tool" or results):
        if role == "system" or results:
            return list(results)
        raise RowError(RowCode.EMPTY, text("data.row.turn_blank", number=number))
    name = turn.get("name")
    call_id = turn.get("tool_call_id") if role == "tool" else None
    message = Message(
        role,
        content,
        reasoning,
        calls,
        name if isinstance(name, str) else "",
        str(call_id) if call_id is not None else "",
        parts,
        weigh(number, turn) * weight if role == "assistant" else 1.0,
    )
    return [*results, message]


def _key_of(turn: Mapping[str, object], keys: Sequence[str]) -> str:
    """Return the key that a turn lacks, as its other key is spelled: `value` beside `from`."""
    sharegpt = "from" in turn or "value" in turn
    return keys[1] if sharegpt else keys[0]


def _read_reasoning(number: int, turn: Mapping[str, object]) -> str:
    found = next((turn[key] for key in REASONING_KEYS if turn.get(key)), "")
    if not isinstance(found, str):
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.turn_not_text", number=number, found=name_kind(found))
        )
    return "" if is_blank(found) else found


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
    messages = put_reasoning(messages, read_thoughts(values, mapping))
    tools = read_tools(values, mapping["tools"]) if "tools" in mapping else ()
    return make_chat(messages, tools)


def make_chat(messages: Sequence[Message], tools: tuple[Mapping[str, Any], ...] = ()) -> Conversation:
    """Return the Conversation of `messages`. Raises RowError when no turn is an answer."""
    for message in messages:
        if message.role == "assistant":
            return Conversation(tuple(messages), "", "chat", tools)
    raise RowError(RowCode.NO_ANSWER, text("data.row.no_answer"))


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
