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
FULL_STOPS = tuple(".!…।。！｡")
TEXTS = frozenset("string str text varchar char free_text long_text short_text 文本 字符串".split())
NUMBERS = frozenset(
    "int integer int32 int64 float float32 float64 double number numeric decimal 数字 整数".split()
)
FLAGS = frozenset("bool boolean 布尔".split())
DATES = frozenset("date datetime timestamp 日期".split())
LISTS = frozenset("list array object json".split())
CLASSES = frozenset("categorical category enum".split())
TYPES = TEXTS | NUMBERS | FLAGS | DATES | LISTS | CLASSES
"""Words for what the cells of a column are."""
IMPORTED = '{"ImportId"'
"""Begins the cells of a line that a survey's export has below its questions."""
NAMED = re.compile(r"[^\W\d_][\w \-/().#?]{0,40}")
"""How a name of a column looks: letters first, no comma, no full sentence."""
NAME_WORDS = 3
NONE = frozenset(
    "na nan null none nil nv nd ka missing unknown pending tbd unrated notavailable notapplicable keineangabe sindatos "
    "无 暂无 未知 缺失 不详".split()
)
"""What stands in a row in place of a number, letters and digits alone: `n.a.`, `#N/A`, `not available`."""
SIGNS = re.compile(r"[\W_]+")
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
    columns = [[row[place].strip() for row in rows if row[place].strip()] for place in range(len(cells))]
    if _is_imported(cells) or _is_imported(below[0]) or _are_types(cells, columns):
        return [*first]
    if any(NUMBER.fullmatch(cell) for cell in filled) or len({*filled}) < 2:
        return None
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


def _is_imported(cells: Sequence[str]) -> bool:
    """Return whether a line is the last above the rows of a survey's export; above it stand the questions in full."""
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(cell.startswith(IMPORTED) for cell in filled)


def _join_groups(first: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Return the names of the second line, with their group in front where two would be the same."""
    group, names = "", []
    for name, cell in zip(first, cells, strict=True):
        group = name or group
        names.append(f"{group} {cell}".strip() if cells.count(cell) > 1 else cell)
    return names


def _are_types(cells: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return whether cells name the type of what stands below each.

    Words of data are also words, as in a glossary: what is called a text says so only above sentences, or beside types
    that the cells below prove; and types are named in one language.
    """
    named = [(simplify(cell), column) for cell, column in zip(cells, columns, strict=True) if cell]
    if not all(name in TYPES for name, _ in named) or len({name.isascii() for name, _ in named}) > 1:
        return False
    told = [(name, column) for name, column in named if column and name not in TEXTS]
    if not all(_are_of_type(name, column) for name, column in told):
        return False
    return bool(told) or any(_holds_sentences(column) for _, column in named)


def _are_of_type(name: str, column: Sequence[str]) -> bool:
    """Return whether the cells of a column can be what `name`, a type but text, says."""
    if name in NUMBERS:
        return _holds_numbers(column)
    if name in FLAGS:
        return len({cell.lower() for cell in column}) <= 2
    if name in DATES:
        return all(any(map(str.isdigit, cell)) for cell in column)
    if name in LISTS:
        return all(cell[0] in "[{" for cell in column)
    return len({*column}) < len(column)


def _are_described(cells: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return whether words stand where all below are numbers, in two columns at least, and nothing looks like a row's.

    What describes numbers has several words, or stands alone, as units do; one word may as well stand for a number that
    a row does not have, and a row has sentences where others have them.
    """
    numbers = [place for place, column in enumerate(columns) if _holds_numbers(column)]
    said = [
        cells[place]
        for place in numbers
        if any(map(str.isalpha, cells[place])) and not _is_none(cells[place])
    ]
    if len(said) < 2 or len(said) < len(numbers) or len({*said}) < len(said):
        return False
    others = [place for place, cell in enumerate(cells) if cell and place not in numbers]
    if any(_holds_sentences(columns[place]) and _is_sentence(cells[place]) for place in others):
        return False
    return not others or any(count_words(cell) >= 2 for cell in said)


def _is_none(cell: str) -> bool:
    """Return whether a cell says that a row has no number there."""
    return SIGNS.sub("", cell).lower() in NONE


def _is_sentence(cell: str) -> bool:
    return count_words(cell) >= SENTENCE_WORDS or cell.endswith(FULL_STOPS)


def _holds_numbers(column: Sequence[str]) -> bool:
    counted = sum(NUMBER.fullmatch(cell) is not None for cell in column)
    return bool(column) and counted >= NUMBERS_SHARE * len(column)


def _holds_sentences(column: Sequence[str]) -> bool:
    words = sorted(map(count_words, column))
    return bool(words) and words[len(words) // 2] >= SENTENCE_WORDS
