"""How a table of text lies: what separates its cells, in which line its columns are named, and why that was chosen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.containers.container import ReadOptions, name_columns
from studio.data.containers.second_header import (
    FULL_STOPS,
    LEAST_ROWS,
    LOOKED_AT,
    NUMBER,
    SENTENCE_WORDS,
    drop_headers,
)
from studio.data.formats.cells import count_words, is_asking

DELIMITERS = (",", ";", "\t", "|")
QUOTE, APOSTROPHE = '"', "'"
ALONE = "\x1f"
"""Stands for no delimiter, in a table of one column whose text may hold them all."""
LAYOUT_RECORDS = 200
TITLE_RECORDS = 20
"""Titles and notes above the names of the columns take up at most this many."""
NAME_CHARACTERS = 200
"""A longer cell is no name of a column: the questions of a form, which are used as names, stay below."""
QUOTED = re.compile(r'\s+".*"\s*')
YEAR = re.compile(r"(19|20)\d\d")
TEXT_NAMES = {"text", "content", "document", "sentence", "paragraph", "body"}
"""No titles of a table, whatever follows."""
SHOWN = {"\t": "tab", " ": "blank"}

Record = tuple[int, Sequence[str]]
"""(line from 1, cells)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLayout:
    """How a table of text lies."""

    delimiter: str
    columns: tuple[str, ...]
    header_line: int
    """Line where the names stand, from 1; 0: nowhere, the columns are numbered."""
    reasons: tuple[Text, ...]
    """Why, for a person."""
    spaced: bool = False
    """Blanks stand between delimiters and quotation marks."""
    quote: str = QUOTE
    """What stands around cells that hold delimiters."""


def find_layout(
    read: Callable[..., Iterable[Record]], options: ReadOptions, preferred: str = ","
) -> TableLayout:
    """Return the Layout of a table.

    read: (delimiter, spaced, quote) -> the first records of the table cut so, at most LAYOUT_RECORDS. preferred: wins
    a tie.
    Raises StudioError when two columns have the same name.
    """
    candidates = (
        (options.delimiter,)
        if options.delimiter
        else sorted(DELIMITERS, key=lambda delimiter: delimiter != preferred)
    )
    best: tuple[float, str, list[Record]] | None = None
    for delimiter in candidates:
        records = list(read(delimiter, False))
        score = _score(records)
        if best is None or score > best[0]:
            best = score, delimiter, records
    score, delimiter, records = best
    reasons = []
    spaced = list(read(delimiter, True))
    quoted = sum(any(QUOTED.fullmatch(cell) for cell in cells) for _, cells in records)
    is_spaced = _score(spaced) > score or 2 * quoted > len(records)
    records = spaced if is_spaced else records
    quote = QUOTE
    if _are_in_apostrophes(records):
        others = [(one, list(read(one, is_spaced, APOSTROPHE))) for one in candidates]
        best_other = max(others, key=lambda other: _score(other[1]))
        if _score(best_other[1]) >= score:
            quote, (delimiter, records) = APOSTROPHE, best_other
            score = _score(records)
    if not options.delimiter and _is_alone(records):
        delimiter, records = ALONE, list(read(ALONE, False))
        reasons.append(text("data.table.one_column"))
    elif not options.delimiter and score > 0:
        reasons.append(text("data.table.delimiter", delimiter=SHOWN.get(delimiter, delimiter)))
    if not records:
        return TableLayout(delimiter=delimiter, columns=(), header_line=0, reasons=())
    place = _find_header(records, options.header_row)
    if place is None:
        width = _find_width(records)
        columns = tuple(f"column_{number}" for number in range(1, width + 1))
        reasons.append(text("data.table.no_header", column=columns[0]))
        return TableLayout(
            delimiter=delimiter,
            columns=columns,
            header_line=0,
            reasons=tuple(reasons),
            spaced=is_spaced,
            quote=quote,
        )
    line, cells = records[place]
    if place:
        reasons.append(text("data.table.header", line=line))
    if not options.header_row:
        cells, more = drop_headers(cells, [below for _, below in records[place + 1 :]])
        for line, _ in records[place + 1 : place + 1 + more]:
            reasons.append(text("data.table.second_header", line=line))
    columns = name_columns(cells, options.name)
    return TableLayout(
        delimiter=delimiter,
        columns=columns,
        header_line=line,
        reasons=tuple(reasons),
        spaced=is_spaced,
        quote=quote,
    )


def _are_in_apostrophes(records: Sequence[Record]) -> bool:
    """Return whether most rows have a cell between apostrophes, or the beginning of one that holds delimiters."""
    begun = [any(cell.lstrip().startswith(APOSTROPHE) for cell in cells) for _, cells in records]
    ended = [any(cell.rstrip().endswith(APOSTROPHE) for cell in cells) for _, cells in records]
    both = sum(one and other for one, other in zip(begun, ended, strict=True))
    return len(records) >= LEAST_ROWS and both > len(records) / 2


def _find_width(records: Sequence[Record]) -> int:
    """Return the number of cells that most records have, the larger where two are as frequent."""
    counts = Counter(len(cells) for _, cells in records)
    return max(counts, key=lambda width: (counts[width], width))


def _score(records: Sequence[Record]) -> float:
    """Return 0..1: the share of records with the usual number of cells; 0 where that is one."""
    if not records:
        return 0.0
    width = _find_width(records)
    if width < 2:
        several = sum(len(cells) > 1 for _, cells in records)
        return 0.1 * several / len(records)
    same = sum(len(cells) == width for _, cells in records) / len(records)
    return same if len(records[0][1]) == width else same * 0.9


def _is_alone(records: Sequence[Record]) -> bool:
    """Return whether there is one column: one word is its name, and the rows have one cell or now this many, now that.

    One word above rows of two cells or more each is a title.
    """
    if not records or len(records[0][1]) > 1:
        return False
    word = records[0][1][0].strip()
    widths = {len(cells) for _, cells in records[1:]}
    return word.lower() in TEXT_NAMES or (
        re.fullmatch(r"\w+", word) is not None and (len(widths) > 1 or widths <= {1})
    )


def _find_header(records: Sequence[Record], header_row: int) -> int | None:
    """Return which record names the columns; None when none does."""
    if header_row < 0:
        return None
    if header_row:
        return next((place for place, (line, _) in enumerate(records) if line >= header_row), 0)
    width = _find_width(records)
    for place, (_, cells) in enumerate(records[:TITLE_RECORDS]):
        filled = [bool(cell.strip()) for cell in cells]
        only_first = len(cells) > 1 and not any(filled[1:])
        padded_title = only_first and any(
            sum(bool(cell.strip()) for cell in others) > 1 for _, others in records[place + 1 : TITLE_RECORDS]
        )
        if len(cells) == width and not padded_title:
            return None if holds_values(cells) or is_like_the_rest(cells, records[place + 1 :]) else place
        if len(cells) > 1 and not only_first:  # names, above rows with another number of cells
            return None if holds_values(cells) else place
    return 0


def is_like_the_rest(cells: Sequence[str], records: Sequence[Record]) -> bool:
    """Return whether the first row looks as those below do: sentences above sentences, or a label that comes again.

    Where no cell is a sentence, all are to be like those below in letters and length, and none of Latin ones alone.
    """
    rows = [others for _, others in records[:LOOKED_AT] if len(others) == len(cells)]
    if len(rows) < LEAST_ROWS:
        return False
    like = unlike = alike = 0
    for place, cell in enumerate(cells):
        below = [others[place].strip() for others in rows if others[place].strip()]
        if not below or not cell.strip():
            continue
        words = sorted(count_words(other) for other in below)[len(below) // 2]
        if words >= SENTENCE_WORDS:
            # The questions of a form are names: what stands below answers them, in words of its own.
            asks = is_asking(cell) and not any(map(is_asking, below))
            long = count_words(cell) >= max(SENTENCE_WORDS, words // 2)
            same = (long or _is_closed_alike(cell.strip(), below)) and not asks
            like, unlike = like + same, unlike + (not same)
        elif len({*below}) <= len(below) / 2 and cell.strip() in below:
            like += 1
        else:
            alike += _is_written_alike(cell.strip(), below)
    return not unlike and (like > 0 or alike == len(cells))


def _is_closed_alike(cell: str, below: Sequence[str]) -> bool:
    """Return whether a cell of several words ends with a full stop, as most of those below do: no name does."""
    closed = sum(other.endswith(FULL_STOPS) for other in below)
    return count_words(cell) >= SENTENCE_WORDS and cell.endswith(FULL_STOPS) and 2 * closed > len(below)


def _is_written_alike(cell: str, below: Sequence[str]) -> bool:
    """Return whether a cell has the script of those below, not Latin, about their length, and letters of them."""
    letters = {letter for other in below for letter in other if letter.isalpha()}
    own = [letter for letter in cell if letter.isalpha()]
    lengths = sorted(map(len, below))
    middle = lengths[len(lengths) // 2]
    foreign = bool(own) and not any(letter.isascii() for letter in own)
    known = 2 * sum(letter in letters for letter in own) >= len(own)
    return foreign and known and middle / 2 <= len(cell) <= 2 * middle


def holds_values(cells: Sequence[str]) -> bool:
    """Return whether the cells are values rather than names: numbers, or whole texts."""
    words = [cell.strip() for cell in cells]
    if words == [str(number) for number in range(len(words))]:  # what pandas writes for columns without names
        return False
    numbers = [word for word in words if NUMBER.fullmatch(word) and not YEAR.fullmatch(word)]
    return bool(numbers) or any(len(word) > NAME_CHARACTERS for word in words)
