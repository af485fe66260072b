"""Answers that lie beside each other: a column a label with yes or no in it, or a row an option of a question."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.chained_rows import make_key
from studio.data.columns import measure_columns
from studio.data.formats.aliases import ANSWERS, QUESTIONS
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import find_core, part_name, simplify
from studio.data.row import Row

YES = frozenset(("1", "1.0", "true", "yes", "y", "x", "t"))
NO = frozenset(("0", "0.0", "false", "no", "n", "f", ""))
NONE = "none"
"""The answer where no label is given."""
LEAST_LABELS = 3
"""Two flags beside a text are more often notes than labels."""
LEAST_ROWS = 6
FLAGGED = frozenset("correct right true answer label target solution key gold".split())
"""Words in the names of flags that mark the right option."""
OFFERED = frozenset(
    "choice choices option options alternative answer candidate response text ending distractor".split()
)
"""Words in the names of columns with an option a row."""
NOTED = frozenset(
    "is has contains train test valid validation verified checked spam deleted active public".split()
)
"""Words in the names of flags that tell something about a row, and nothing that a model should find out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flagged:
    """Columns of which each says yes or no to one label: a column with the labels that hold."""

    columns: tuple[str, ...]
    name: str = "labels"
    """Of the column that is made."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return self.columns

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text(
            "data.reshape.flagged",
            columns=", ".join(map(shorten, self.columns[:8])),
            name=self.name,
            none=NONE,
        )

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with the names of the columns that say yes, in their order; broken rows as they are."""
        for row in rows:
            if row.problem is None:
                held = [name for name in self.columns if _read_flag(row.values.get(name))]
                values = {name: cell for name, cell in row.values.items() if name not in self.columns}
                told = not all(is_empty(row.values.get(name)) for name in self.columns)
                values[self.name] = (", ".join(held) or NONE) if told else None
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row


@dataclass(frozen=True, kw_only=True, slots=True)
class Offered:
    """Rows that hold a question and one of its options each, those of a question behind each other."""

    question: str
    option: str
    flag: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.option, self.flag)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text(
            "data.reshape.offered",
            question=shorten(self.question),
            option=shorten(self.option),
            flag=shorten(self.flag),
        )

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row a question with its `options` and the `answer` that is right; broken rows as they are."""
        number, held = 0, []
        for row in rows:
            if row.problem is not None:
                yield row
                continue
            if held and make_key(row.values.get(self.question)) != make_key(
                held[-1].values.get(self.question)
            ):
                number += 1
                yield self._join(held, number)
                held = []
            held.append(row)
        if held:
            yield self._join(held, number + 1)

    def _join(self, held: Sequence[Row], number: int) -> Row:
        first = held[0]
        right = [row.values.get(self.option) for row in held if _read_flag(row.values.get(self.flag))]
        shared = {
            name: cell
            for name, cell in first.values.items()
            if name not in self.consumed and all(row.values.get(name) == cell for row in held)
        }
        shared["options"] = [row.values.get(self.option) for row in held]
        shared["answer"] = "; ".join(map(str, right)) or None
        return Row(first.line, shared, None, number, first.offset, first.raw)


def find_flagged(columns: Sequence[str], rows: Sequence[Values]) -> Flagged | None:
    """Return the columns of labels beside the only text of a table; None where there are none.

    Each holds nothing but yes and no, some of both in the table as a whole; a table with a question, an answer or
    another label has them for something else.
    """
    known = measure_columns(columns, rows)
    flags = [name for name in columns if name in known and _is_flag(name, rows)]
    flags = [name for name in flags if not NOTED & {*part_name(name)}]
    rest = [one for one in known.values() if one.name not in flags and one.distinct > 1]
    prose = [one for one in rest if one.is_prose and one.plain]
    short = [one for one in rest if one not in prose and one.spoken and one.is_labels]
    asked = any(find_core(name) in (*QUESTIONS, *ANSWERS) for name in columns if name not in flags)
    if len(flags) < LEAST_LABELS or len(rows) < LEAST_ROWS or len(prose) != 1 or short or asked:
        return None
    if not any(_read_flag(row.get(name)) for row in rows for name in flags):
        return None
    return None if "labels" in columns else Flagged(columns=tuple(flags))


def find_offered(columns: Sequence[str], rows: Sequence[Values]) -> Offered | None:
    """Return which columns hold a question, an option of it and whether that is right; None where none do.

    The proof lies in the values: rows behind each other with one question have different options, and mostly one yes.
    """
    flags = [name for name in columns if FLAGGED & {*part_name(name)} and _is_flag(name, rows)]
    asked = [name for name in columns if simplify(name) in QUESTIONS or find_core(name) in QUESTIONS]
    offered = [name for name in columns if OFFERED & {*part_name(name)} and name not in (*flags, *asked)]
    if len(rows) < LEAST_ROWS:
        return None
    for question, option, flag in itertools.product(asked, offered, flags):
        if _offers(question, option, flag, rows):
            return Offered(question=question, option=option, flag=flag)
    return None


def _offers(question: str, option: str, flag: str, rows: Sequence[Values]) -> bool:
    groups: list[list[Values]] = []
    for row in rows:
        if not groups or make_key(groups[-1][-1].get(question)) != make_key(row.get(question)):
            groups.append([])
        groups[-1].append(row)
    groups = groups[:-1] if len(groups) > 2 else groups  # the rows that are looked at may end within one
    several = [group for group in groups if len(group) > 1]
    apart = len({make_key(group[0].get(question)) for group in groups}) == len(groups)
    own = all(len({make_key(row.get(option)) for row in group}) == len(group) for group in several)
    right = [sum(_read_flag(row.get(flag)) for row in group) for group in several]
    return (
        len(several) >= max(2, 0.8 * len(groups))
        and apart
        and own
        and sum(one == 1 for one in right) >= 0.5 * len(right)
        and sum(1 <= one < len(group) for one, group in zip(right, several, strict=True)) >= 0.9 * len(right)
    )


def _is_flag(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds yes and no, and nothing else, in almost every row."""
    cells = [row.get(name) for row in rows]
    told = [cell for cell in cells if not is_empty(cell)]
    words = {_flag_word(cell) for cell in told}
    return len(told) >= 0.9 * len(cells) > 0 and words <= YES | NO and bool(words & NO)


def _flag_word(cell: object) -> str:
    return str(cell).strip().lower()


def _read_flag(cell: object) -> bool:
    return not is_empty(cell) and _flag_word(cell) in YES
