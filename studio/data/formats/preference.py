"""Two answers to one question, of which the first is the better one: `chosen` and `rejected`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.core.i18n import text
from studio.data.conversation import Conversation, Message
from studio.data.formats.aliases import (
    ANSWERS,
    CHOSEN,
    INSTRUCTION,
    LISTS,
    QUESTIONS,
    REJECTED,
    SYSTEM,
    TOOLS,
)
from studio.data.formats.cells import Values, holds_setting, holds_text, is_empty, read_cell, read_optional
from studio.data.formats.column_names import simplify
from studio.data.formats.context import MATERIALS
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import put_system_first, read_turns
from studio.data.formats.pairs import find_pair, sort_pair
from studio.data.formats.prompt_answer import asks_last, has_turns, holds_side, open_sides, read_question
from studio.data.formats.tool_calls import holds_tools, read_tools
from studio.data.row import RowError
from studio.data.row_codes import RowCode

SPEAKER = re.compile(r"(?:^|\n)(Human|Assistant): ?")
"""How transcripts in one string, such as those of hh-rlhf, begin a turn."""
ROLES = ("chosen", "rejected")
LONGEST, WORDY_CHARACTERS = 2, 40
"""So many times longer than the next is a text that both answers were written for, of so many letters on average."""
MARKED = (("pos", "positive"), ("neg", "negative"))
PROMPTED = ("prompt", "instruction")
"""Names of answers that are good and bad where a prompt stands beside them; elsewhere they are found texts."""


def read(values: Values, mapping: Mapped) -> Conversation:
    """The prompt has a column of its own, or is what both answers begin with."""
    if "first" in mapping and "prompt" in mapping:
        values = open_sides(values, [mapping[role] for role in ("prompt", "first", "second")])
    if "chosen" in mapping:
        sides = [_read_answer(values, mapping[role]) for role in ROLES]
    else:
        pair = dict(zip(ROLES, sort_pair(values, mapping), strict=True))
        sides = [_read_answer(pair, role) for role in ROLES]
    asked = any(role in mapping and not is_empty(values.get(mapping[role])) for role in ("prompt", "input"))
    if all(isinstance(side, str) for side in sides):
        if _same_words(*sides):
            raise RowError(RowCode.SAME_ANSWERS, text("data.row.pair_same"))
        if asked:
            prompt = read_question(values, mapping)
        else:
            words, *sides = _part_texts(*sides)
            prompt = [Message("user", words)]
        chosen, rejected = ([Message("assistant", side)] for side in sides)
    else:
        talk = next(side for side in sides if not isinstance(side, str))
        # Beside a whole talk, an answer in words takes the place of the talk's last turn.
        turns = [
            [*talk[:-1], Message("assistant", side)] if isinstance(side, str) else side for side in sides
        ]
        prompt, chosen, rejected = _part_turns(*turns)
        if not any(message.role == "user" for message in prompt):
            if not asked:
                required = mapping.get("prompt")
                if required is not None:
                    read_cell(values, required)
                raise RowError(RowCode.OTHER_QUESTIONS, text("data.row.pair_prompt"))
            prompt = prompt + read_question(values, mapping)
    prompt = put_system_first(prompt, read_optional(values, mapping, "system"))
    tools = read_tools(values, mapping["tools"]) if "tools" in mapping else ()
    return Conversation(
        tuple(prompt), kind="preference", tools=tools, chosen=tuple(chosen), rejected=tuple(rejected)
    )


def _read_answer(values: Values, column: str) -> str | list[Message]:
    """Return an answer as text or turns; a transcript becomes turns. Raises RowError."""
    cell = values.get(column)
    if has_turns(cell):
        return read_turns(values, column)
    words = read_cell(values, column)
    if words.lstrip().startswith("Human:") and "\nAssistant:" in words:
        _, *parts = SPEAKER.split(words.strip())
        speakers = {"Human": "user", "Assistant": "assistant"}
        turns = [
            Message(speakers[speaker], said.strip())
            for speaker, said in zip(parts[::2], parts[1::2], strict=True)
        ]
        for number, turn in enumerate(turns, start=1):
            if not turn.content:
                raise RowError(RowCode.EMPTY, text("data.row.turn_blank", number=number))
        return turns
    return words


def _complete(turns: list[Message], whole: list[Message]) -> list[Message]:
    """Return a side that is an answer alone behind the talk of the other side."""
    alone = all(turn.role == "assistant" for turn in turns) and len(whole) > 1
    asked = [turn.role for turn in whole[:-1]]
    return (
        [*whole[:-1], *turns] if alone and asked[-1:] == ["user"] and whole[-1].role == "assistant" else turns
    )


def _part_turns(
    chosen: list[Message], rejected: list[Message]
) -> tuple[list[Message], list[Message], list[Message]]:
    """Return the turns that both begin with, and what follows in each.

    Raises RowError: NO_ANSWER, SAME_ANSWERS, OTHER_QUESTIONS.
    """
    for turns in (chosen, rejected):
        if turns[-1].role != "assistant":
            raise RowError(RowCode.NO_ANSWER, text("data.row.no_answer"))
    chosen, rejected = _complete(chosen, rejected), _complete(rejected, chosen)
    if len(chosen) == len(rejected) and all(map(_same_turn, chosen, rejected)):
        raise RowError(RowCode.SAME_ANSWERS, text("data.row.pair_same"))
    shared = 0
    for one, other in zip(chosen[:-1], rejected[:-1], strict=False):
        if not _same_turn(one, other):
            break
        shared += 1
    if chosen[shared].role != "assistant" or rejected[shared].role != "assistant":
        raise RowError(RowCode.OTHER_QUESTIONS, text("data.row.pair_prefix", number=shared + 1))
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _same_turn(one: Message, other: Message) -> bool:
    return (
        one.role == other.role
        and _same_words(one.content, other.content)
        and one.tool_calls == other.tool_calls
        and one.parts == other.parts
    )


def _same_words(one: str, other: str) -> bool:
    return one == other or one.strip() == other.strip()


def _part_texts(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Return what both texts begin with, up to a white space, and what follows. Raises RowError: OTHER_QUESTIONS."""
    shared = 0
    for one, other in zip(chosen, rejected, strict=False):
        if one != other:
            break
        shared += 1
    while shared and not chosen[shared - 1].isspace():
        shared -= 1
    prompt, *answers = chosen[:shared].strip(), chosen[shared:], rejected[shared:]
    if not prompt or not all(answer.strip() for answer in answers):
        raise RowError(RowCode.OTHER_QUESTIONS, text("data.row.pair_prompt"))
    return prompt, *answers


def settle(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> dict[str, str]:
    """Return `mapping`, with two answers and the column that says which is better where nothing is called rejected."""
    if "rejected" in mapping or "first" in mapping or "rated" in mapping:
        return _add_prompt(columns, dict(mapping), sample)
    if "chosen" not in mapping and simplify(mapping.get("prompt", "")) in PROMPTED:
        marked = [next((name for name in columns if simplify(name) in names), "") for names in MARKED]
        cells = [row.get(name) for name in marked for row in sample if not is_empty(row.get(name))]
        if all(marked) and all(isinstance(cell, str) for cell in cells):
            return {**mapping, **dict(zip(ROLES, marked, strict=True))}
    pair = find_pair(columns, sample)
    rest = {role: name for role, name in mapping.items() if name not in pair.values() and role != "chosen"}
    return _add_prompt(columns, {**rest, **pair}, sample) if pair else dict(mapping)


def _add_prompt(columns: Sequence[str], mapping: dict[str, str], sample: Sequence[Values]) -> dict[str, str]:
    """Return `mapping` with the column of turns that end with a question, where no prompt is named."""
    if "prompt" in mapping or "input" in mapping:
        return mapping
    free = [name for name in columns if name not in mapping.values()]
    found = [name for name in free if asks_last(name, sample)]
    if not found and {*ROLES} <= {*mapping} and not _share_beginning(mapping, sample):
        # What stands in neither answer and is by far the longest text was read before them.
        sizes = {
            name: sum(len(cell) for row in sample if isinstance(cell := row.get(name), str)) for name in free
        }
        order = sorted(free, key=lambda name: -sizes[name])
        found = [
            name
            for name in order[:1]
            if sizes[name] > LONGEST * max((sizes[one] for one in order[1:]), default=0)
        ]
        found = [name for name in found if sizes[name] >= WORDY_CHARACTERS * len(sample)]
    return {"prompt": found[0], **mapping} if len(found) == 1 else mapping


def _share_beginning(mapping: Mapped, sample: Sequence[Values]) -> bool:
    """Return whether the two answers of a row are turns, or texts that begin with the same words: their question."""
    for row in sample[:5]:
        sides = [row.get(mapping[role]) for role in ROLES]
        if not all(isinstance(side, str) for side in sides) or any(map(has_turns, sides)):
            return True
        if sides[0].split()[:2] == sides[1].split()[:2]:
            return True
    return False


FORMAT = Format(
    name="preference",
    roles={
        "prompt": ("prompt", *QUESTIONS, *INSTRUCTION),
        "input": ("input",),
        "chosen": CHOSEN,
        "rejected": REJECTED,
        "first": (),
        "second": (),
        "better": (),
        "leaning": (),
        "first_score": (),
        "second_score": (),
        "rated": (),
        "system": SYSTEM,
        "tools": TOOLS,
        **dict.fromkeys(MATERIALS, ()),
    },
    required=("chosen|first|rated", "rejected|second|rated"),
    kinds={
        "prompt": holds_side,
        "input": holds_text,
        "chosen": holds_side,
        "rejected": holds_side,
        "system": holds_setting,
        "tools": holds_tools,
    },
    read=read,
    fallback={
        "prompt": ("conversations", "conversation", "history", "context"),
        "chosen": (*ANSWERS, *LISTS, "text"),
    },
    settle=settle,
    beats=("messages", "sharegpt", "prompt_completion", "alpaca", "text", "rl", "kto"),
)
