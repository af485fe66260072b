"""Labels that somebody found out about a text, and the words in it that they are about."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from studio.data.columns import LABELS_SHARE, LOOKED_AT, MOST_LABELS, Column
from studio.data.formats.aliases import LABEL
from studio.data.formats.cells import Values, is_empty
from studio.data.formats.column_names import BLOCKING, part_name
from studio.data.formats.context import TECHNICAL
from studio.data.likelihood import NOTED
from studio.data.ranking import DATED, GRADED, JUDGED, MOSTLY
from studio.data.related_names import are_twins, extends, hints

POINTED = 0.9
"""Of the cells, so many stand in the text that they point into."""
MOST_POINTED = 6
WORD_KEYS = ("text", "word", "words", "name", "value", "mention", "span")
"""Keys of the words that an object points at."""
"""Words of an average cell that points into a text."""
LABEL_WORDS = 4
COMPARED = frozenset("premise hypothesis claim statement evidence sentence sentences text".split())
"""Words in the names of two texts of which a label says what they are to each other."""
KINDS = frozenset(
    "genre domain source split subset category lang language type dataset corpus fold set".split()
)
UNNAMED = re.compile(r"(?:v|c|f|col|column|field|unnamed)?[_ :]*\d+", re.I)
"""Names that tell nothing but a column's place."""
SORTING = GRADED | {"level", "topic", "genre", "type", "department", "priority", "language", "lang"}
"""Words in the names of what sorts texts: learned where a table holds nothing else but the texts."""


def find_label(asked: str, columns: Sequence[Column], rows: Sequence[Values]) -> str:
    """Return the only label that was found out about the text `asked`; "" where there is none, or one of several.

    A class is one only where the table holds nothing but it and the text; a label in numbers and in words is one.
    """
    rest = [one for one in columns if one.name != asked and one.distinct > 1]
    rest = [one for one in rest if not _says_again(one, asked) and not points_into(one, [asked], rows)]
    labels = [one for one in rest if _holds_labels(one, rows)]
    found = [one for one in labels if hints(one, LABEL) or {*part_name(one.name)} & JUDGED]
    if not found:
        told = [
            one for one in rest if not {*part_name(one.name)} & (DATED | TECHNICAL | NOTED | {"id", "uid"})
        ]
        named = (
            {*part_name(labels[0].name)} & SORTING or UNNAMED.fullmatch(labels[0].name) if labels else False
        )
        found = labels if labels == told and named else []
    elif any(one.spoken and one not in found and not _is_noted(one) for one in _drop_judged(rest, asked)):
        return ""
    if found and not any(hints(one, LABEL) for one in found) and any(_sorts(one) for one in labels):
        found = [one for one in labels if one in found or _sorts(one)]
    spoken = [one for one in found if one.spoken] or found
    first = spoken[0] if spoken else None
    same = first is not None and all(_pairs_up(first.name, one.name, rows) for one in found)
    return first.name if first is not None and same else ""


def points_into(one: Column, texts: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether a column holds words that stand in the text of their row, other ones in most rows.

    What is found out about a text is then found out about these words in it: an aspect, a pronoun, a name.
    """
    if not one.structured and not (
        one.spoken and one.plain and one.words <= MOST_POINTED and one.distinct > 1
    ):
        return False
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        cell = row.get(one.name)
        if isinstance(cell, Mapping):  # with its place and its kind
            cell = next((cell[key] for key in WORD_KEYS if isinstance(cell.get(key), str)), "-")
        if isinstance(cell, str) and not is_empty(cell):
            seen += 1
            told += any(_holds(row.get(name), cell) for name in texts)
    return bool(seen) and told >= POINTED * seen


def finds_words(name: str, text: str, rows: Sequence[Values]) -> bool:
    """Return whether a column lists objects of which each names words that stand in the text of its row."""
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        cell, words = row.get(name), row.get(text)
        if isinstance(cell, (list, tuple)) and cell and isinstance(words, str):
            seen += 1
            named = [
                [part for part in one.values() if isinstance(part, str)]
                for one in cell
                if isinstance(one, Mapping)
            ]
            told += len(named) == len(cell) and all(
                any(_holds(words, part) for part in parts) for parts in named
            )
    return bool(seen) and told >= POINTED * seen


def marks_places(name: str, text: str, rows: Sequence[Values]) -> bool:
    """Return whether a column lists places in the text of its row: two numbers each, the higher one last, in it."""
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        cell, words = row.get(name), row.get(text)
        if isinstance(cell, (list, tuple)) and cell and isinstance(words, str):
            seen += 1
            told += all(_is_place(one, len(words)) for one in cell)
    return bool(seen) and told >= POINTED * seen


def _is_place(cell: object, characters: int, levels: int = 3) -> bool:
    """Return whether an object or a list holds two numbers behind each other, at any depth, as a place in a text."""
    if not isinstance(cell, (list, tuple, dict)) or not levels:
        return False
    parts = [*cell.values()] if isinstance(cell, dict) else [*cell]
    numbers = [one for one in parts if type(one) is int]
    if any(0 <= start < end <= characters for start, end in itertools.pairwise(numbers)):
        return True
    return any(_is_place(one, characters, levels - 1) for one in parts)


def _holds(cell: object, words: str) -> bool:
    return isinstance(cell, str) and 1 < len(words) < len(cell) and words.strip().lower() in cell.lower()


def _holds_labels(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column holds few short values that come again and again, in almost every row."""
    few = 1 < one.distinct <= min(MOST_LABELS, max(2, LABELS_SHARE * one.rows))
    if not few or one.filled < MOSTLY or not (one.counted or (one.spoken and one.words <= LABEL_WORDS)):
        return False
    return not any(isinstance(row.get(one.name), (list, tuple, dict)) for row in rows[:LOOKED_AT])


def _says_again(one: Column, asked: str) -> bool:
    """Return whether a column is the text once more, or stands beside it: `raw_text`, `sentence2`."""
    return extends(one.name, asked) or extends(asked, one.name) or are_twins(one.name, asked)


def _drop_judged(rest: Sequence[Column], asked: str) -> list[Column]:
    """Return `rest` without the kinds of rows, and without the one text that is judged together with `asked`."""
    rest = [one for one in rest if not (one.is_labels and {*part_name(one.name)} & KINDS)]
    others = [one for one in rest if one.is_prose and {*part_name(one.name)} & COMPARED]
    whole = [
        one for one in others if not any(extends(one.name, two.name) for two in others if two is not one)
    ]
    if len(whole) != 1 or not {*part_name(asked)} & COMPARED:
        return [*rest]
    return [one for one in rest if one not in others]


def _sorts(one: Column) -> bool:
    return bool({*part_name(one.name)} & SORTING)


def _is_noted(one: Column) -> bool:
    return bool({*part_name(one.name)} & (NOTED | TECHNICAL | DATED | (BLOCKING - JUDGED)))


def _pairs_up(name: str, other: str, rows: Sequence[Values]) -> bool:
    """Return whether each value of a column stands beside one and the same value of another one."""
    beside: dict[str, str] = {}
    back: dict[str, str] = {}
    for row in rows[:LOOKED_AT]:
        here, there = str(row.get(name)), str(row.get(other))
        if beside.setdefault(here, there) != there or back.setdefault(there, here) != here:
            return False
    return True
