"""Answers that a row only points to, by the places of their first and last letter in the text beside the question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import ANSWERS, EXPECTED, QUESTIONS
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import find_core, part_name, simplify
from studio.data.row import Row

STARTS = frozenset(("start", "begin", "begins", "from"))
ENDS = frozenset(("end", "ends", "stop", "to"))
"""Words in the names of the two places."""
PLACED = frozenset(
    "answer answers span char character characters offset position pos idx index token".split()
)
"""Words beside them."""
WHOLE_WORDS = 0.9
"""Of the places, so many are the edges of words where letters were counted, and not words or bytes."""
LEAST_ROWS, POINTING = 3, 0.5
"""Rows at least, and of all so many, in which the places lie in the text; where nothing answers they point nowhere."""
ANSWER = "answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class CutAnswer:
    """A text and two places in it: what stands between them as a column of answers."""

    passage: str
    start: str
    end: str
    last: int
    """1 where the letter at the end belongs to the answer, else 0."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.start, self.end)

    @property
    def note(self) -> Text:
        """What a person should know."""
        names = {name: shorten(getattr(self, name)) for name in ("passage", "start", "end")}
        return text("data.reshape.cut", **names)

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its answer in place of the places: null where they point to nothing."""
        for row in rows:
            if row.problem is None:
                found = _cut(row.values, self.passage, self.start, self.end, self.last)
                rest = {name: cell for name, cell in row.values.items() if name not in self.consumed}
                row = Row(row.line, {**rest, ANSWER: found}, None, row.row, row.offset, row.raw)
            yield row


def find_cut(columns: Sequence[str], rows: Sequence[Values]) -> CutAnswer | None:
    """Return which columns hold a text and the places of an answer in it; None where none do, or it stands in words.

    The proof lies in the values: almost all places are edges of words.
    """
    named = {simplify(name) for name in columns} | {find_core(name) for name in columns}
    if named & {*ANSWERS, *EXPECTED} or not named & {*QUESTIONS} or len(rows) < LEAST_ROWS:
        return None
    starts, ends = ([one for one in columns if _is_place(one, words)] for words in (STARTS, ENDS))
    for start in starts:
        for end in ends:
            for passage in columns:
                for last in (0, 1):
                    cells = [_edges(row, passage, start, end, last) for row in rows]
                    told = [cell for cell in cells if cell is not None]
                    if len(told) >= max(LEAST_ROWS, POINTING * len(cells)) and sum(told) >= WHOLE_WORDS * len(
                        told
                    ):
                        return CutAnswer(passage=passage, start=start, end=end, last=last)
    return None


def _is_place(name: str, words: frozenset[str]) -> bool:
    parts = {*part_name(name)}
    return bool(parts & words) and parts <= words | PLACED


def _read(values: Values, name: str) -> int | None:
    cell = values.get(name)
    if isinstance(cell, str) and cell.strip().isdecimal() and len(cell) < 12:
        return int(cell)
    return int(cell) if type(cell) in (int, float) and cell == cell and cell == int(cell) else None


def _cut(values: Values, passage: str, start: str, end: str, last: int) -> str | None:
    words, first, behind = values.get(passage), _read(values, start), _read(values, end)
    if not isinstance(words, str) or first is None or behind is None:
        return None
    found = words[first : behind + last] if 0 <= first < behind + last <= len(words) else ""
    return None if is_empty(found) else found


def _edges(values: Values, passage: str, start: str, end: str, last: int) -> bool | None:
    """Return whether two places are the edges of words, of a text in which a place within a word could be seen."""
    words = values.get(passage)
    found = _cut(values, passage, start, end, last)
    if not isinstance(words, str) or found is None:
        return None
    first, behind = _read(values, start) or 0, (_read(values, end) or 0) + last
    inside = words[max(0, first - 1) : first].isalnum() and found[0].isalnum()
    outside = words[behind : behind + 1].isalnum() and found[-1].isalnum()
    return not (inside or outside or found[0].isspace() or found[-1].isspace())
