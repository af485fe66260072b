"""Lists side by side in a row: several questions to one answer, answers with their scores, one text by language."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import ANSWERS, CHOSEN, QUESTIONS, REJECTED
from studio.data.formats.answer_lists import ALTERNATIVES, RANKS, SCORES
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.choices import find_key
from studio.data.formats.column_names import find_core, part_name, simplify
from studio.data.formats.question_answer import list_words
from studio.data.related_names import LANGUAGES
from studio.data.row import Row

ASKED_WORDS = frozenset(
    "questions queries prompts utterances patterns phrases instructions paraphrases wordings examples".split()
)
"""Words in the names of lists of which each entry is asked, and not one after another."""
WORDINGS = frozenset("patterns phrases paraphrases wordings".split())
"""Those that say that the entries mean the same."""
SAID_WORDS = frozenset("answer answers response responses reply replies output outputs completion".split())
NUMBERED = frozenset((*SCORES, *RANKS))
MARK_KEYS = ("label", "type", "preference", "status", "kind")
"""Keys under which an answer says whether it was chosen."""
SAID_KEYS = ("messages", "content", "text", "response", "answer", "output", "completion", "message", "value")
COMPARED_WORDS = SAID_WORDS | {"summary", "summaries", "completions", "candidates", "texts", "generations"}
"""Words in the names of lists of two answers that were compared ..."""
BETTER_WORDS = frozenset("choice chosen preferred preference better best winner selected pick".split())
"""... and in the names of the number of the better one."""
LEAST = 2
MARKED = re.compile(r"(.+?)_?([a-h]|\d)")
"""The name of one of several answers: `response_a`, `answer2`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Rows with several wordings of a question: a row each."""

    column: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields: none."""
        return ()

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.spread", column=shorten(self.column))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row for each entry of the list, with the other columns; broken rows as they are."""
        number = 0
        for row in rows:
            cell = row.values.get(self.column)
            entries = [one for one in cell if not is_empty(one)] if isinstance(cell, (list, tuple)) else []
            for entry in entries or (cell,):
                number += 1
                values = row.values if row.problem is not None else {**row.values, self.column: entry}
                yield Row(row.line, values, row.problem, number, row.offset, row.raw)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """Lists of answers and of their scores: a list of answers with a score each."""

    answers: str
    scores: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.answers, self.scores)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.rated", answers=shorten(self.answers), scores=shorten(self.scores))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its scores inside of its answers."""
        key = "rank" if {*part_name(self.scores)} & {*RANKS} else "score"
        for row in rows:
            answers, scores = row.values.get(self.answers), row.values.get(self.scores)
            if row.problem is None and _pairs(answers, scores):
                joined = [{"text": one, key: score} for one, score in zip(answers, scores, strict=True)]
                values = {name: cell for name, cell in row.values.items() if name != self.scores}
                row = Row(row.line, {**values, self.answers: joined}, None, row.row, row.offset, row.raw)
            yield row


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """Answers in columns of their own and a list of their marks, the best first: a list of answers with a rank each."""

    answers: tuple[str, ...]
    marks: tuple[str, ...]
    ranking: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (*self.answers, self.ranking)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text(
            "data.reshape.ranked",
            ranking=shorten(self.ranking),
            answers=", ".join(map(shorten, self.answers)),
        )

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its answers, those that are ranked, in one list in place of the ranking."""
        for row in rows:
            order = _read_order(row.values.get(self.ranking), self.marks)
            if row.problem is None and order:
                cells = [row.values.get(self.answers[self.marks.index(mark)]) for mark in order]
                found = [{"text": one, "rank": i} for i, one in enumerate(cells) if not is_empty(one)]
                values = {name: cell for name, cell in row.values.items() if name not in self.consumed}
                row = Row(row.line, {**values, "answers": found}, None, row.row, row.offset, row.raw)
            yield row


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """Lists of answers that say themselves which was chosen and which was not: a column each."""

    column: str
    key: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.column,)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.labelled", column=shorten(self.column), key=shorten(self.key))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with the columns `chosen` and `rejected` in place of the list."""
        for row in rows:
            sides = _label_sides(row.values.get(self.column), self.key)
            if row.problem is None and len(sides) > 1:
                values = {name: cell for name, cell in row.values.items() if name != self.column}
                row = Row(row.line, {**values, **sides}, None, row.row, row.offset, row.raw)
            yield row


@dataclass(frozen=True, kw_only=True, slots=True)
class PickedPair:
    """Lists of two answers and the number of the better one: a column each."""

    column: str
    choice: str
    first: int
    """The number of the first answer."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return (self.column, self.choice)

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.picked", column=shorten(self.column), choice=shorten(self.choice))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with the columns `chosen` and `rejected` in place of the list and the number."""
        for row in rows:
            said, number = _part_two(row.values.get(self.column)), row.values.get(self.choice)
            if row.problem is None and said and number in (self.first, self.first + 1):
                better = number - self.first
                sides = {"chosen": said[better], "rejected": said[1 - better]}
                rest = {name: cell for name, cell in row.values.items() if name not in self.consumed}
                row = Row(row.line, {**rest, **sides}, None, row.row, row.offset, row.raw)
            yield row


def find_picked(columns: Sequence[str], rows: Sequence[Values]) -> PickedPair | None:
    """Return the list of two answers and the column that picks the better one; None where there are none.

    What is called choices or options belongs to a question, and its number is the answer.
    """
    for name in columns:
        cells = [row[name] for row in rows if not is_empty(row.get(name))]
        if not {*part_name(name)} & COMPARED_WORDS or not cells or not all(map(_part_two, cells)):
            continue
        for other in columns:
            numbers = {row.get(other) for row in rows if type(row.get(other)) in (int, type(None))} - {None}
            told = {*part_name(other)} & BETTER_WORDS and len(numbers) == 2 and numbers in ({0, 1}, {1, 2})
            if told and all(type(row.get(other)) in (int, type(None)) for row in rows):
                return PickedPair(column=name, choice=other, first=min(numbers))
    return None


def _part_two(cell: object) -> list[object]:
    """Return the words of the two answers that a cell lists; [] for anything else."""
    if not isinstance(cell, (list, tuple)) or len(cell) != 2:
        return []
    words = [
        next((one[key] for key in SAID_KEYS if isinstance(one.get(key), str)), None)
        if isinstance(one, Mapping)
        else one
        for one in cell
    ]
    return words if all(isinstance(one, str) and one.strip() for one in words) else []


def find_labelled(columns: Sequence[str], rows: Sequence[Values]) -> Labelled | None:
    """Return the list of answers that are marked as chosen and rejected; None where there is none."""
    for name in columns:
        cells = [row[name] for row in rows if not is_empty(row.get(name))]
        for key in MARK_KEYS:
            if cells and all(len(_label_sides(cell, key)) > 1 for cell in cells):
                return Labelled(column=name, key=key)
    return None


def _label_sides(cell: object, key: str) -> dict[str, object]:
    """Return the first answer that `key` marks as chosen, and the first as rejected; {} for other lists."""
    found: dict[str, object] = {}
    for one in cell if isinstance(cell, (list, tuple)) else ():
        mark = one.get(key) if isinstance(one, Mapping) else None
        side = "chosen" if _is_called(mark, CHOSEN) else "rejected" if _is_called(mark, REJECTED) else ""
        said = next((one[name] for name in SAID_KEYS if not is_empty(one.get(name))), None) if side else None
        if said is None:
            return {}
        found.setdefault(side, said)
    return found


def _is_called(mark: object, names: Sequence[str]) -> bool:
    return isinstance(mark, str) and simplify(mark) in names


def find_ranked(columns: Sequence[str], rows: Sequence[Values]) -> Ranked | None:
    """Return answers in columns of their own and the list that ranks them; None where there are none."""
    fronts: dict[str, dict[str, str]] = {}
    for name in columns:
        found = MARKED.fullmatch(simplify(name))
        if found and ALTERNATIVES & {*part_name(found[1])}:
            fronts.setdefault(found[1], {})[found[2]] = name
    for sides in fronts.values():
        marks = tuple(sorted(sides))
        for name in columns:
            cells = [row[name] for row in rows if not is_empty(row.get(name))]
            ranks = {*part_name(name)} & {*RANKS, "order", "preference"}
            if ranks and len(marks) > 1 and cells and all(_read_order(cell, marks) for cell in cells):
                return Ranked(answers=tuple(sides[mark] for mark in marks), marks=marks, ranking=name)
    return None


def _read_order(cell: object, marks: Sequence[str]) -> list[str]:
    """Return the marks in the order of a cell, a list or `B > A`; [] where it names others, or one twice."""
    parts = re.split(r"\s*[>,]\s*", cell.strip()) if isinstance(cell, str) else cell
    if not isinstance(parts, (list, tuple)):
        return []
    order = [str(one).strip().lower() for one in parts]
    return order if 1 < len({*order}) == len(order) and {*order} <= {*marks} else []


@dataclass(frozen=True, kw_only=True, slots=True)
class Languages:
    """Objects with a text for each language: a column each; of a single one the text itself."""

    columns: tuple[str, ...]
    single: bool

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return () if self.single else self.columns

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.languages", columns=", ".join(map(shorten, self.columns)))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with the texts in place of the objects."""
        for row in rows:
            if row.problem is None:
                values: dict[str, object] = {}
                for name, cell in row.values.items():
                    if name not in self.columns or not isinstance(cell, Mapping):
                        values[name] = cell
                    elif self.single:
                        values[name] = next(iter(cell.values()), None)
                    else:
                        values |= {f"{name}.{language}": one for language, one in cell.items()}
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row


def find_languages(columns: Sequence[str], rows: Sequence[Values]) -> Languages | None:
    """Return the columns that hold objects whose keys are all languages; None where there are none."""
    found: list[str] = []
    keys: set[str] = set()
    for name in columns:
        cells = [row[name] for row in rows if not is_empty(row.get(name))]
        if cells and simplify(name) != "translation" and all(map(_is_by_language, cells)):
            found.append(name)
            keys |= {key for cell in cells for key in cell}
    return Languages(columns=tuple(found), single=len(keys) == 1) if found and keys != {"id"} else None


def _is_by_language(cell: object) -> bool:
    return isinstance(cell, Mapping) and all(
        isinstance(key, str) and key.lower().replace("-", "_").partition("_")[0] in LANGUAGES for key in cell
    )


def find_rated(columns: Sequence[str], rows: Sequence[Values]) -> Rated | None:
    """Return the lists of answers and of as many scores; None where there are none."""
    for name in columns:
        if not (simplify(name) in ANSWERS or find_core(name) in ANSWERS or ALTERNATIVES & {*part_name(name)}):
            continue
        for other in columns:
            if other == name or not {*part_name(other)} & NUMBERED:
                continue
            cells = [(row.get(name), row.get(other)) for row in rows if not is_empty(row.get(name))]
            told = [cell for cell in cells if len(cell[0]) >= LEAST] if _are_lists(cells) else []
            if told and all(_pairs(*cell) for cell in cells):
                return Rated(answers=name, scores=other)
    return None


def _are_lists(cells: Sequence[tuple[object, object]]) -> bool:
    return all(isinstance(one, (list, tuple)) for cell in cells for one in cell)


def _pairs(answers: object, scores: object) -> bool:
    return (
        isinstance(answers, (list, tuple))
        and isinstance(scores, (list, tuple))
        and len(answers) == len(scores)
        and all(isinstance(one, str) for one in answers)
        and all(isinstance(one, (int, float)) for one in scores)
    )


def find_spread(columns: Sequence[str], rows: Sequence[Values]) -> Spread | None:
    """Return the column that holds several wordings of a question that has one answer; None where none does.

    Lists of as many questions as answers are asked in turn.
    """
    said = [name for name in columns if SAID_WORDS & {*part_name(name)}]
    for name in columns:
        if not (simplify(name) in QUESTIONS or ASKED_WORDS & {*part_name(name)}):
            continue
        cells = [(row[name], row) for row in rows if not is_empty(row.get(name))]
        if not cells or not all(_is_texts(cell) for cell, _ in cells):
            continue
        many = any(len(cell) > 1 for cell, _ in cells)
        worded = bool(WORDINGS & {*part_name(name)})
        answers = [other for other in said if other != name and (worded or not _in_turn(name, other, rows))]
        if many and len(answers) == len(said) == 1 and not find_key(columns, name, rows):
            return Spread(column=name)
    return None


def _is_texts(cell: object) -> bool:
    return isinstance(cell, (list, tuple)) and bool(cell) and all(isinstance(one, str) for one in cell)


def _in_turn(name: str, other: str, rows: Sequence[Values]) -> bool:
    """Return whether the lists of two columns are equally long in all rows, and not all of one entry."""
    pairs = [(row[name], row[other]) for row in rows if row.get(name) and row.get(other)]
    lists = [(one, said if isinstance(said, (list, tuple)) else list_words(said)) for one, said in pairs]
    return all(said and len(one) == len(said) for one, said in lists)
