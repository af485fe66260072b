"""What a person is told of the columns that are learned: what becomes of lists of answers, and of what grades them."""

from __future__ import annotations

from collections.abc import Sequence

from studio.core.i18n import Text, text
from studio.data.columns import LOOKED_AT
from studio.data.formats.answer_lists import find_place, holds_parts
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.choices import read_flags
from studio.data.formats.flags import MOST_WEIGHT
from studio.data.formats.format import Mapped
from studio.data.formats.message_parsing import holds_turns
from studio.data.formats.question_answer import are_rounds, holds_findings, open_answers
from studio.data.scored_answers import is_mark, read_mark

MOST_WORDS, FEWEST_GRADED = 8, 4
"""Different words at most that grade; rows at least in which something can be seen."""
MOST_TOLD = 3
"""Columns of marks that are told of one by one."""


def tell_lists(names: Sequence[str], rows: Sequence[Values], asking: str = "") -> list[Text]:
    """Return what becomes of the lists in the columns that are learned; `asking`: the column that they answer."""
    told = []
    for name in names:
        cells = [row.get(name) for row in rows]
        lists = [open_answers(cell, name) if isinstance(cell, str) else cell for cell in cells]
        several = [
            cell
            for cell in lists
            if isinstance(cell, (list, tuple))
            and len(cell) > 1
            and not holds_turns(cell)
            and not read_flags(cell, len(cell))
        ]
        if several and are_rounds(asking, name, rows):
            told.append(text("data.sniff.rounds", questions=shorten(asking), answers=shorten(name)))
        elif several:
            whole = (
                holds_parts(several[0], name)
                or holds_findings(several[0], name)
                or find_place(several[0], name)
            )
            kind = "joined" if whole else "picked"
            told.append(text(f"data.sniff.{kind}", column=shorten(name)))
    return told


def tell_marks(mapping: Mapped, columns: Sequence[str], rows: Sequence[Values]) -> list[Text]:
    """Return what a person should know of columns that grade the answers: all answers are learned alike."""
    if "weight" in mapping:
        return []
    told = []
    for name in columns:
        cells = [row.get(name) for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
        if name in mapping.values() or not is_mark(name) or len(cells) < FEWEST_GRADED:
            continue
        marks = [read_mark(cell) for cell in cells]
        numbers = [mark for mark in marks if mark is not None]
        if len(numbers) == len(cells) and min(numbers) < max(numbers):
            low, high = (f"{one:g}" for one in (min(numbers), max(numbers)))
            weighs = 0 <= min(numbers) and max(numbers) <= MOST_WEIGHT
            id = "data.sniff.marks" if weighs else "data.sniff.marks_only"
            told.append(text(id, column=shorten(name), low=low, high=high))
        words = list(dict.fromkeys(str(cell) for cell in cells))
        if not numbers and all(isinstance(cell, str) for cell in cells) and 1 < len(words) <= MOST_WORDS:
            told.append(text("data.sniff.grades", column=shorten(name), words=", ".join(map(shorten, words))))
    return told[:MOST_TOLD]
