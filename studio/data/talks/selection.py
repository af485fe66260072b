"""The step that makes plain lists of turns of the talks in rows, chosen by what a sample of the rows holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from studio.core.i18n import Text, text
from studio.data.formats.aliases import HISTORY
from studio.data.formats.cells import Values, count_words, is_asking, is_empty, shorten
from studio.data.formats.column_names import part_name, simplify
from studio.data.formats.flags import find_sense
from studio.data.formats.message_parsing import CALL_KEYS, CONTENT_KEYS, REASONING_KEYS, ROLE_KEYS
from studio.data.list_columns import SAID_WORDS
from studio.data.row import Row
from studio.data.talks.rows import recast
from studio.data.talks.sides import SPEAKER_KEYS, find_side, is_list_name
from studio.data.talks.turns import parse_text, to_turn

LOOKED_AT = 100
LEAST_SHARE = 0.5
"""Of the sample's rows, so many hold a talk where the data set is one of talks."""
SPOKEN_SHARE = 0.6
"""Of neighbouring turns, more are said by different people."""
FEWEST_PAIRS, TRANSLATED, LAST_LATIN = 4, 0.8, "\u0250"
"""Of pairs of texts, so many in two scripts are a translation."""
WORDS = 2
"""An average text of a list has more words where it is a turn, and no tag or token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Talks:
    """How the talks of rows are read."""

    where: str
    """What holds the talk in the first row, for a person."""
    named: frozenset[str] = frozenset()
    """Columns whose texts alternate, though their names do not say so."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.where, *self.named)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.talks", column=shorten(self.where))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its talk as a list of turns; a tree becomes a Row for each of its ends."""
        number = 0
        for row in rows:
            made = recast(row.values, self.named) if row.problem is None else None
            for values in made or (row.values,):
                number += 1
                yield Row(row.line, values, row.problem, number, row.offset, row.raw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Headed:
    """Rows that are lists of cells, below one that names the columns."""

    column: str
    names: tuple[str, ...]

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.column,)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.headed", columns=", ".join(map(shorten, self.names)))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its cells under their names; what has another number of cells as it is."""
        for row in rows:
            cells = row.values.get(self.column)
            if isinstance(cells, (list, tuple)) and tuple(cells) == self.names:
                continue
            values = row.values
            if isinstance(cells, (list, tuple)) and len(cells) == len(self.names):
                values = dict(zip(self.names, cells, strict=True))
            yield Row(row.line, values, row.problem, row.row, row.offset, row.raw)


def find_talks(columns: Sequence[str], rows: Sequence[Values], sure: bool = False) -> Talks | Headed | None:
    """Return how the talks of rows become lists of turns; None where they are, or where there are none.

    sure: whether the person said that they are talks.
    """
    rows = rows[:LOOKED_AT]
    alone = not any(find_side(name) for name in columns)
    answered = any(SAID_WORDS & {*part_name(name)} for name in columns)
    named = frozenset(
        name
        for name in columns
        if not is_list_name(name)
        and (
            (not answered and _alternates(name, rows))
            or _lists_pairs(name, rows)
            or _takes_turns(name, rows)
            or (alone and simplify(name) in HISTORY)
            or (sure and len(columns) <= 2 and bool(_list_texts(name, rows)))
        )
    )
    if len(columns) == 1 and not sure and _are_translations(columns[0], rows):
        return Headed(column=columns[0], names=("column_1", "column_2"))
    if len(columns) == 1 and rows and _names_columns(rows[0].get(columns[0])):
        return Headed(column=columns[0], names=tuple(rows[0][columns[0]]))
    if not sure and any(map(_numbers_sides, columns)) and not any(map(_names_speakers, rows)):
        return None  # texts of one side: the questions of a test, or what a model answered to them
    if not sure and any(
        is_list_name(name) and (_is_tagged(name, rows) or _only_asks(name, rows)) for name in columns
    ):
        return None
    made = [(row, recast(row, named)) for row in rows]
    made = [(row, found) for row, found in made if found]
    if not made or len(made) < LEAST_SHARE * len(rows):
        return None
    before, after = made[0]
    gone = [name for name in before if name not in after[0] or before[name] is not after[0][name]]
    return Talks(where=(gone or ["messages"])[0], named=named)


def _are_translations(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are pairs of texts, the one in Latin letters and the other in none of them."""
    pairs = [row.get(name) for row in rows if not is_empty(row.get(name))]
    if len(pairs) < FEWEST_PAIRS or not all(
        isinstance(one, (list, tuple)) and len(one) == 2 for one in pairs
    ):
        return False
    texts = [one for pair in pairs for one in pair]
    if not all(isinstance(one, str) for one in texts):
        return False
    apart = sum(_is_latin(one) is not _is_latin(other) for one, other in pairs)
    return apart > TRANSLATED * len(pairs)


def _is_latin(words: str) -> bool:
    letters = [letter for letter in words if letter.isalpha()]
    return 2 * sum(letter < LAST_LATIN for letter in letters) > len(letters)


def _numbers_sides(name: str) -> bool:
    """Return whether a column numbers questions, or answers, so that a row is one of them: `question_id`."""
    words = {*part_name(name)}
    return "id" in words and bool(words & {"question", "prompt", "answer"})


def _names_speakers(value: object, levels: int = 4) -> bool:
    """Return whether an object says at some depth who speaks, by a key or by its value."""
    value = parse_text(value) if isinstance(value, str) else value
    if not levels:
        return False
    if isinstance(value, Mapping):
        if any(key in value for key in SPEAKER_KEYS[:5]) or any(
            find_side(key) and not is_empty(cell) for key, cell in value.items()
        ):
            return True
        value = list(value.values())
    return isinstance(value, (list, tuple)) and any(_names_speakers(one, levels - 1) for one in value[:4])


def _list_texts(name: str, rows: Sequence[Values]) -> list[Sequence[str]]:
    """Return the cells of a column that holds lists of texts; [] where one holds something else."""
    cells = [row.get(name) for row in rows if not is_empty(row.get(name))]
    if all(isinstance(cell, (list, tuple)) and all(isinstance(one, str) for one in cell) for cell in cells):
        return cells
    return []


def _names_columns(cell: object) -> bool:
    """Return whether a list holds the names of columns, as the first row of a table does."""
    if not isinstance(cell, (list, tuple)) or len({*map(str, cell)}) < 2:
        return False
    return all(isinstance(one, str) and find_side(one) and not any(map(str.isdigit, one)) for one in cell)


def _is_tagged(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's lists hold single words, as a text that was cut into its tokens."""
    said = [one for cell in _list_texts(name, rows) for one in cell if not one.lstrip().startswith("{")]
    return (
        bool(said) and sum(count_words(one) for one in said) < WORDS * len(said) and max(map(len, said)) < 40
    )


def _only_asks(name: str, rows: Sequence[Values]) -> bool:
    """Return whether the texts of a column's lists are questions throughout, to which the answers are not there."""
    said = [one for cell in _list_texts(name, rows) for one in cell[1::2]]
    return bool(said) and sum(is_asking(one) for one in said) > 0.6 * len(said)


def _alternates(name: str, rows: Sequence[Values]) -> bool:
    """Return whether texts of a list are questions and answers in turn: the odd ones ask, the even ones do not."""
    cells = _list_texts(name, rows)
    if not cells or any(len(cell) < 2 or len(cell) % 2 for cell in cells):
        return False
    asking = sum(is_asking(one) for cell in cells for one in cell[::2])
    telling = sum(is_asking(one) for cell in cells for one in cell[1::2])
    turns = sum(len(cell) // 2 for cell in cells)
    return asking > 0.5 * turns and telling < 0.2 * turns


def _lists_pairs(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are lists of two texts each, of which the second answers the first."""
    cells = [row.get(name) for row in rows if not is_empty(row.get(name))]
    pairs = [pair for cell in cells for pair in (cell if isinstance(cell, (list, tuple)) else ("",))]
    if not pairs or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        for pair in pairs
    ):
        return False
    if sum(is_asking(one) for _, one in pairs) > 0.6 * len(pairs):
        return False  # one question in two ways
    return sum(count_words(one) for pair in pairs for one in pair) > 2 * WORDS * len(pairs)


def _takes_turns(name: str, rows: Sequence[Values]) -> bool:
    """Return whether lists of objects are turns of a few people who speak in turn, whatever the column is called."""
    cells = [row[name] for row in rows if isinstance(row.get(name), (list, tuple)) and row[name]]
    turns = [[to_turn(one) for one in cell] for cell in cells]
    if not turns or not all(all(cell) for cell in turns):
        return False
    long = [cell for cell in turns if len(cell) > 2]
    few = [cell for cell in long if 1 < len({turn["role"] for turn in cell}) < len(cell)]
    said = [turn["content"] for cell in turns for turn in cell]
    changes = [one["role"] != other["role"] for cell in few for one, other in pairwise(cell)]
    return (
        bool(changes)
        and len(few) > 0.5 * len(turns)
        and sum(changes) > SPOKEN_SHARE * len(changes)
        and all(isinstance(words, str) for words in said)
        and sum(count_words(words) for words in said) > WORDS * len(said)
    )


def list_unread(columns: Sequence[str], rows: Sequence[Values]) -> tuple[str, ...]:
    """Return the keys of turns that hold words which no format reads."""
    return tuple(
        dict.fromkeys(key for row in rows[:LOOKED_AT] for name in columns for key in _unread(row.get(name)))
    )


def _unread(cell: object) -> Iterator[str]:
    if not isinstance(cell, (list, tuple)):
        return
    for turn in cell:
        if not isinstance(turn, Mapping) or not any(key in turn for key in ROLE_KEYS):
            continue
        read = next((key for key in CONTENT_KEYS if turn.get(key) not in (None, [])), "")
        if not read:
            continue
        for key, value in turn.items():
            if key == read or key in (*ROLE_KEYS, *CALL_KEYS, *REASONING_KEYS) or find_sense(key):
                continue
            if isinstance(value, str) and count_words(value) >= 4 and value != turn[read]:
                yield str(key)
