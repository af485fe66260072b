"""Lines below the names of a table's columns that are no rows: names under groups, types, names in another language."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.data.formats import aliases
from studio.data.formats.cells import count_words
from studio.data.formats.column_names import simplify

MOST_LINES = 2
LEAST_ROWS, LOOKED_AT = 3, 50
SENTENCE_WORDS = 4
NUMBER = re.compile(r"[+-]?\d+([.,]\d+)*([eE][+-]?\d+)?%?")
TYPES = frozenset(
    "string str text varchar char int integer int32 int64 float float32 float64 double number numeric decimal bool "
    "boolean date datetime timestamp list array object json categorical category enum free_text long_text short_text "
    "文本 字符串 数字 整数 布尔 日期".split()
)
"""Words for what the cells of a column are."""
NAMED = re.compile(r"[^\W\d_][\w \-/().#?]{0,40}")
"""How a name of a column looks: letters first, no comma, no full sentence."""
NAME_WORDS = 3
NONE = frozenset("na n/a nan null none nil missing unknown -".split())
"""What stands in a row in place of a number."""
NUMBERS_SHARE = 0.9
KNOWN = frozenset(
    name
    for names in (
        aliases.QUESTIONS,
        aliases.ANSWERS,
        aliases.INSTRUCTION,
        aliases.INPUT,
        aliases.TEXT,
        aliases.LABEL,
        aliases.PRODUCTS,
        aliases.EXPECTED,
        aliases.MATERIAL,
        aliases.SYSTEM,
        ("prompt", "completion", "id", "no", "topic", "category", "source", "title"),
    )
    for name in names
)
"""Names that columns are known by."""


def drop_headers(first: Sequence[str], records: Sequence[Sequence[str]]) -> tuple[list[str], int]:
    """Return the names of the columns and how many of `records`, which stand below `first`, are no rows."""
    names, dropped = [cell.strip() for cell in first], 0
    while dropped < MOST_LINES and len(records) > dropped:
        found = _read_second(names, records[dropped], records[dropped + 1 :][:LOOKED_AT])
        if found is None:
            break
        names, dropped = found, dropped + 1
    return names, dropped


def _read_second(
    first: Sequence[str], second: Sequence[str], below: Sequence[Sequence[str]]
) -> list[str] | None:
    """Return the names that two lines give together; None where the second one is a row."""
    rows = [cells for cells in below if len(cells) == len(first)]
    cells = [cell.strip() for cell in second]
    filled = [cell for cell in cells if cell]
    if len(cells) != len(first) or len(rows) < LEAST_ROWS or len(filled) < 2:
        return None
    if all(simplify(cell) in TYPES or cell.startswith('{"ImportId"') for cell in filled):
        return [*first]
    if any(NUMBER.fullmatch(cell) for cell in filled) or len({*filled}) < 2:
        return None
    columns = [[row[place].strip() for row in rows if row[place].strip()] for place in range(len(cells))]
    if any(cell and cell in column for cell, column in zip(cells, columns, strict=True)):
        return None  # it comes again
    if _are_described(cells, columns) and all(first):
        return [*first]
    named = all(NAMED.fullmatch(cell) and count_words(cell) <= NAME_WORDS for cell in filled)
    known = sum(simplify(cell) in KNOWN for cell in filled)
    texts = [place for place, column in enumerate(columns) if _holds_sentences(column)]
    unlike = bool(texts) and all(
        count_words(cells[place]) < SENTENCE_WORDS for place in texts if cells[place]
    )
    if not (named and unlike and known):
        return None
    if any(first) and not all(first[1:]):
        below_groups = all(cells[place] for place, column in enumerate(columns) if column)
        return _join_groups(first, cells) if below_groups else None
    if known >= 2:
        before = sum(simplify(cell) in KNOWN for cell in first)
        return (
            [*first] if before >= known else [cell or name for cell, name in zip(cells, first, strict=True)]
        )
    return None


def _join_groups(first: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Return the names of the second line, with their group in front where two would be the same."""
    group, names = "", []
    for name, cell in zip(first, cells, strict=True):
        group = name or group
        names.append(f"{group} {cell}".strip() if cells.count(cell) > 1 else cell)
    return names


def _are_described(cells: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return whether words stand where all below are numbers, in two columns at least."""
    numbers = [
        place
        for place, column in enumerate(columns)
        if column
        and sum(NUMBER.fullmatch(cell) is not None for cell in column) >= NUMBERS_SHARE * len(column)
    ]
    said = [
        place for place in numbers if any(map(str.isalpha, cells[place])) and cells[place].lower() not in NONE
    ]
    return len(said) >= 2 and said == numbers


def _holds_sentences(column: Sequence[str]) -> bool:
    words = sorted(map(count_words, column))
    return bool(words) and words[len(words) // 2] >= SENTENCE_WORDS
