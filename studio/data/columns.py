"""What the columns of a data set hold, seen in a sample: how many words, whether they repeat, whether they label."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from studio.data.formats.cells import Values, count_words, is_asking, is_code, is_coded, is_empty, shorten
from studio.data.formats.column_names import BLOCKING, part_name
from studio.data.formats.context import is_cut, is_numbers, say_material

LOOKED_AT = 200
CELL_CHARACTERS = 20_000
WORDY = 3.5
"""Words of an average cell from which on a column is prose: names, categories and dates have fewer."""
NUMBER = re.compile(r"[-+]?\d*[.,]?\d+(e[-+]?\d+)?|[\[({][\s\[({]*[-+.]?\d[\d\s.,eE\[\](){}+-]*")
"""A number, or a list of numbers that is written out."""
PROGRAM = re.compile(r"\w\([^()]*\)|[\])]\s*[=:{]|[\w)\]]\s*[-+*/]?=\s*[\w(\['\"]|[;{]\s*$", re.M)
"""What programs hold and sentences do not: a call, an assignment, a line that ends in a brace."""
PROSE = re.compile(r"\b[a-zA-Z]{2,}(?:[ ,]+[a-zA-Z]{1,}){5}")
"""Six words in a row."""
LABELS_SHARE = 0.5
"""Of the rows, as many different values at most has a column of labels, ..."""
LONG, SHORTER = 20, 2
"""Words of a text that can be summed up, and so many times longer than its summary it is."""
COMPARED, FEWEST, SUMMED_CHARACTERS = 20, 4, 4000
TAG_CHARACTERS, FEWEST_TAGS, TAG_SHARE = 24, 40, 0.12
"""Marks of words are as short, and so many different ones are among as many at least."""
ALIKE = 0.6
"""Of the longer words of two texts, so many stand in both where one is the other once more."""
LONG_WORD = re.compile(r"[^\W\d_]{5,}")
TAKEN_UP = 0.5
"""Of the longer words of a summary, so many stand in its text."""
MOST_LABELS = 200
"""... and so many at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """What a column holds."""

    name: str
    filled: float
    """Share of the rows in which it holds something."""
    characters: float
    """Of an average row."""
    words: float
    """Of an average cell that is not empty; in scripts without spaces half the letters."""
    distinct: int
    """Different cells."""
    rows: int
    """Cells that are not empty."""
    asks: float
    """Share of the cells that end in a question mark."""
    sample: str
    """The first cell that holds something, in one line."""
    spoken: bool
    """Whether its cells are text, or hold text: no numbers, addresses, ids, truth values."""
    plain: bool = True
    """Whether its cells are text, and no lists or objects."""
    cut: bool = False
    """Whether its cells are texts that were cut into their words."""
    counted: bool = False
    """Whether its cells are numbers, truth values, or lists of them, and no ids."""
    structured: bool = False
    """Whether its cells are objects."""
    sums: frozenset[str] = frozenset()
    """Columns of longer texts whose words its cells take up, each those of its own row."""
    tagged: bool = False
    """Whether its cells are lists of marks for single words: the same few in all rows."""
    coded: bool = False
    """Whether its cells are lines of a program or a query, and no sentences."""

    @property
    def is_prose(self) -> bool:
        """Whether it holds sentences, and not the same few ones again and again."""
        varied = self.distinct > max(1, 0.1 * self.rows) or self.words >= 2 * WORDY
        return self.spoken and self.words >= WORDY and varied

    @property
    def is_labels(self) -> bool:
        """Whether it holds few short values that come again and again."""
        few = 1 < self.distinct <= min(MOST_LABELS, max(2, LABELS_SHARE * self.rows))
        return (
            few
            and self.words <= 4
            and not BLOCKING
            & {*part_name(self.name)} - {"type", "category", "tag", "tags", "rating", "level"}
        )


def measure_columns(columns: Sequence[str], rows: Sequence[Values]) -> dict[str, Column]:
    """Return what each of `columns` holds, by name, as the first rows show it."""
    known = {name: _measure(name, rows[:LOOKED_AT]) for name in columns}
    prose = [one for one in known.values() if one.is_prose and one.plain and one.distinct > 1]
    longer = [one for one in prose if one.words >= LONG]
    if len(prose) < 2 or not longer:
        return known
    words = {one.name: [_list_long(row.get(one.name)) for row in rows[:COMPARED]] for one in prose}
    for one in prose:
        if one.asks < 0.5:
            texts = [two.name for two in longer if two.words >= SHORTER * one.words]
            sums = frozenset(name for name in texts if _sums_up(words[one.name], words[name]))
            known[one.name] = dataclasses.replace(one, sums=sums)
    return known


def _sums_up(said: Sequence[set[str]], read: Sequence[set[str]]) -> bool:
    """Return whether the longer words of one column stand in another's text of the same row, not the next."""
    pairs = [(words, n) for n, words in enumerate(said) if words and read[n]]
    if len(pairs) < FEWEST:
        return False
    own = sum(len(words & read[n]) / len(words) for words, n in pairs) / len(pairs)
    next_ = sum(len(words & read[(n + 1) % len(read)]) / len(words) for words, n in pairs) / len(pairs)
    return own >= TAKEN_UP and own >= 2 * next_


def _list_long(cell: object) -> set[str]:
    """Return the words of a cell that are long enough to be about something."""
    words = cell if isinstance(cell, str) else say_material(cell)
    return {*LONG_WORD.findall(words[:SUMMED_CHARACTERS].lower())}


def _measure(name: str, rows: Sequence[Values]) -> Column:
    cells = [row.get(name) for row in rows]
    cells = [cell for cell in cells if not is_empty(cell)]
    said = [say_material(cell)[:CELL_CHARACTERS] for cell in cells]
    filled = [words for words in said if words.strip()]
    coded = sum(map(is_coded, filled))
    numbers = sum(isinstance(cell, (bool, int, float)) or is_numbers(cell) for cell in cells)
    numbers += sum(isinstance(cell, str) and NUMBER.fullmatch(cell.strip()) is not None for cell in cells)
    tokens = sum(map(is_cut, cells))
    return Column(
        name=name,
        filled=len(filled) / max(1, len(rows)),
        characters=sum(map(len, filled)) / max(1, len(rows)),
        words=sum(map(count_words, filled)) / max(1, len(filled)),
        distinct=len({*filled}),
        rows=len(filled),
        asks=sum(is_asking(words) for words in filled) / max(1, len(filled)),
        sample=shorten(filled[0], 60) if filled else "",
        spoken=bool(filled) and coded + numbers + tokens < len(filled) / 2,
        plain=all(isinstance(cell, str) for cell in cells),
        structured=bool(cells) and all(isinstance(cell, Mapping) for cell in cells),
        cut=2 * tokens > len(filled),
        tagged=_are_tags(cells),
        coded=2 * sum(map(is_program, filled)) > len(filled),
        counted=2 * numbers > len(filled) and not _is_count(cells),
    )


def _are_tags(cells: Sequence[object]) -> bool:
    """Return whether cells are lists of which the same few short entries make up all: the marks of words."""
    if not all(isinstance(cell, (list, tuple)) and cell for cell in cells):
        return False
    marks = [one for cell in cells for one in cell]
    short = all(isinstance(one, (int, str)) and len(str(one)) <= TAG_CHARACTERS for one in marks)
    return short and len(marks) >= FEWEST_TAGS and len({*map(str, marks)}) <= TAG_SHARE * len(marks)


def is_program(words: str) -> bool:
    """Return whether a text is lines of a program or a query: brackets and signs stand where sentences have spaces."""
    if is_code(words):
        return True
    return PROGRAM.search(words) is not None and PROSE.search(words) is None


def _is_count(cells: Sequence[object]) -> bool:
    """Return whether cells are whole numbers of which none comes twice: they name the rows."""
    said = [str(cell) for cell in cells]
    return len({*said}) == len(said) and all(one.isdigit() for one in said)


def repeats(name: str, others: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether most cells of a column stand, word for word, in the columns `others`."""
    seen = same = 0
    for row in rows[:LOOKED_AT]:
        words = say_material(row.get(name)).strip() if not is_empty(row.get(name)) else ""
        if words:
            seen += 1
            same += any(_stands_in(words, row.get(other)) for other in others)
    return bool(seen) and same > seen / 2


def resembles(name: str, other: str, rows: Sequence[Values]) -> bool:
    """Return whether two columns hold nearly the same words in most rows: a text before its revision, and after."""
    seen = same = 0
    for row in rows[:LOOKED_AT]:
        here, there = (_list_long(row.get(one)) for one in (name, other))
        if here and there:
            seen += 1
            same += len(here & there) >= ALIKE * len(here | there)
    return bool(seen) and 2 * same > seen


def joins(name: str, others: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether most cells of a column are the columns `others` joined, as in a prompt that is written out."""
    seen = same = 0
    for row in rows[:LOOKED_AT]:
        filled = [other for other in others if not is_empty(row.get(other))]
        if not is_empty(row.get(name)) and filled:
            seen += 1
            same += all(_stands_in(say_material(row[other]).strip(), row[name]) for other in filled)
    return len(others) > 1 and bool(seen) and same > seen / 2


def holds_several(one: Column, columns: Sequence[Column], rows: Sequence[Values]) -> bool:
    """Return whether two columns of sentences or code stand in a third: it is both, written together."""
    parts = [two for two in columns if two is not one and (two.is_prose or two.coded) and two.distinct > 1]
    parts = [two for two in parts if two.characters < one.characters and repeats(two.name, [one.name], rows)]
    return any(
        not repeats(here.name, [there.name], rows) and not repeats(there.name, [here.name], rows)
        for n, here in enumerate(parts)
        for there in parts[:n]
    )


def _stands_in(words: str, cell: object) -> bool:
    """Return whether a cell holds `words`, or all their lines; white space aside."""
    if is_empty(cell):
        return False
    whole = _fold(say_material(cell))
    return all(_fold(line) in whole for line in words.splitlines())


def _fold(words: str) -> str:
    """Return a text without white space, and without the brackets that parsed sentences have."""
    return "".join(words.replace("( ", "").replace(" )", "").split())
