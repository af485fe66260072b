"""Numbers and marks that grade answers: what a person is told of them, and pairs of several answers to one question."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.chained_rows import make_key
from studio.data.column_questions import ask_format
from studio.data.formats.aliases import ANSWERS, INSTRUCTION, QUESTIONS
from studio.data.formats.cells import Values, shorten
from studio.data.formats.column_names import find_core, part_name, simplify
from studio.data.formats.flags import MOST_WEIGHT
from studio.data.formats.format import Format, Mapped
from studio.data.open_question import Question
from studio.data.row import Row

MARKS = frozenset(
    "score scores rating ratings rated grade grades mark marks quality reward rewards stars votes upvotes likes points "
    "helpfulness correctness coherence relevance faithfulness fluency accuracy overall preference usefulness "
    "评分 得分 分数 质量 puntuación note bewertung оценка".split()
)
"""Words in the names of what grades an answer."""
OTHERS = frozenset(
    "id count length difficulty prompt question instruction context source toxicity perplexity similarity".split()
)
"""Words in the names of numbers of something else than how good an answer is."""
SEVERAL = 0.5
"""Of the questions, so many have several answers where these are to be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Rows that hold a question, one of its answers and its mark each, those of a question behind each other."""

    question: str
    answer: str
    score: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.answer, self.score)

    @property
    def note(self) -> Text:
        """What a person should know."""
        names = {name: shorten(getattr(self, name)) for name in ("question", "answer", "score")}
        return text("data.reshape.scored", **names)

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row a question with the list of its answers and their scores; broken rows as they are."""
        number = 0
        for broken, held in itertools.groupby(rows, key=self._name_group):
            found = list(held)
            if broken is None:
                yield from found
                continue
            number += 1
            first = found[0]
            answers = [
                {"text": row.values.get(self.answer), "score": read_mark(row.values.get(self.score))}
                for row in found
            ]
            rest = {name: cell for name, cell in first.values.items() if name not in self.consumed}
            yield Row(first.line, {**rest, "answers": answers}, None, number, first.offset, first.raw)

    def _name_group(self, row: Row) -> object:
        return None if row.problem is not None else (make_key(row.values.get(self.question)),)


def read_mark(cell: object) -> float | None:
    """Return the number that a cell is, also as text; None for anything else."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str)):
        return None
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if number == number and abs(number) < MOST_WEIGHT * MOST_WEIGHT else None


def find_scored(columns: Sequence[str], rows: Sequence[Values]) -> Scored | None:
    """Return which columns hold a question, several answers to it behind each other, and their marks; None for none."""
    asked = [name for name in columns if _is_called(name, ("prompt", *QUESTIONS, *INSTRUCTION))]
    said = [name for name in columns if _is_called(name, ANSWERS)]
    for score in (name for name in columns if is_mark(name)):
        for question, answer in itertools.product(asked[:1], said[:1]):
            if _compares(question, answer, score, rows):
                return Scored(question=question, answer=answer, score=score)
    return None


def _is_called(name: str, known: Sequence[str]) -> bool:
    return simplify(name) in known or find_core(name) in known


def is_mark(name: str) -> bool:
    """Return whether a column's name says that it grades something."""
    words = {*part_name(name)}
    return bool(words & MARKS) and not words & OTHERS


def _compares(question: str, answer: str, score: str, rows: Sequence[Values]) -> bool:
    groups = [list(held) for _, held in itertools.groupby(rows, key=lambda row: make_key(row.get(question)))]
    several = [group for group in groups if len({make_key(row.get(answer)) for row in group}) > 1]
    marks = [[read_mark(row.get(score)) for row in group] for group in several]
    told = [found for found in marks if None not in found and len({*found}) > 1]
    return len(several) > 1 and len(several) >= SEVERAL * len(groups) and 2 * len(told) >= len(several)


def ask_compared(
    format: Format, mapping: Mapped, columns: Sequence[str], rows: Sequence[Values]
) -> tuple[Question, ...]:
    """Return the question whether several answers to one question are all learned, or the better against the worse."""
    found = find_scored(columns, rows)
    if found is None or not {found.question, found.answer} <= {*mapping.values()}:
        return ()
    names = {"question": shorten(found.question), "score": shorten(found.score)}
    return (ask_format(text("data.ask.scored", **names), (format.name, "preference")),)
