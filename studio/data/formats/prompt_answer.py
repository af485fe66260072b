"""The two sides of an example, a question and an answer, each as text or as a list of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.core.i18n import text
from studio.data.conversation import Message, Role
from studio.data.formats.answer_lists import open_list
from studio.data.formats.cells import (
    Values,
    holds_words,
    is_empty,
    name_kind,
    read_cell,
    read_optional,
    require_words,
    shorten,
)
from studio.data.formats.message_parsing import find_turns, holds_turns, is_turn, read_turns
from studio.data.formats.roles import read_role
from studio.data.row import RowError
from studio.data.row_codes import RowCode


def holds_side(cell: object) -> bool:
    """Return whether a cell is words or turns."""
    named = isinstance(cell, Mapping) and any(isinstance(one, str) for one in cell.values())
    return holds_words(cell) or holds_turns(cell) or named


def has_turns(cell: object) -> bool:
    """Return whether a cell holds turns rather than words; text may hold turns as JSON."""
    if isinstance(cell, str):
        if cell[:1] not in ("[", " ", "\n"):
            return False
        turns = find_turns(cell)
        return bool(turns) and is_turn(turns[0])
    return isinstance(cell, (list, tuple)) or (isinstance(cell, Mapping) and is_turn(cell))


def asks_last(column: str, sample: Sequence[Values]) -> bool:
    """Return whether the cells of a column are turns of which the last one asks."""
    cells = [find_turns(row[column]) for row in sample if not is_empty(row.get(column))]
    last = [cell[-1] for cell in cells if cell and is_turn(cell[-1])]
    asking = all(read_role(turn.get("role", turn.get("from"))) == "user" for turn in last)
    return bool(cells) and len(last) == len(cells) and asking


def read_side(values: Values, column: str, speaker: Role) -> list[Message]:
    """Return a cell as turns; words become one turn of `speaker`. Raises RowError."""
    if has_turns(values.get(column)):
        return read_turns(values, column)
    cell = values.get(column)
    if isinstance(cell, Mapping):  # a question among facts about it: its longest text
        texts = [one for one in cell.values() if isinstance(one, str)]
        return [Message(speaker, require_words(max(texts, key=len, default=""), column))]
    return [Message(speaker, read_cell(values, column))]


def open_sides(values: Values, columns: Sequence[str]) -> Values:
    """Return a row whose question and answers are lists of one text, written as JSON, with the texts in their place.

    `columns`: the question's first; where it is no such list the row stays as it is. Raises RowError for several texts.
    """
    opened: dict[str, object] = {}
    for column in columns:
        cell = values.get(column)
        listed = open_list(cell, column) if isinstance(cell, str) else None
        if not listed or not all(isinstance(one, str) for one in listed):
            if not opened:
                return values
            continue
        if len(listed) > 1:  # the rounds of a talk, of which each column holds one side
            raise RowError(
                RowCode.WRONG_SHAPE,
                text("data.row.not_text", column=shorten(column), found=name_kind(listed)),
            )
        opened[column] = listed[0]
    return {**values, **opened}


def read_question(values: Values, mapping: Mapping[str, str], role: str = "prompt") -> list[Message]:
    """Return the turns of the prompt's column, with the text of an `input` column behind its words.

    Raises RowError.
    """
    if role not in mapping:
        return [Message("user", read_cell(values, mapping["input"]))]
    material = read_optional(values, mapping, "input")
    if material and is_empty(values.get(mapping[role])):
        return [Message("user", material)]
    turns = read_side(values, mapping[role], "user")
    if material and len(turns) == 1:
        turns = [turns[0]._replace(content=f"{turns[0].content}\n\n{material}")]
    return turns
