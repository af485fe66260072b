"""Rows that hold lists of questions and answers, talks or translations, as an article has: a row becomes several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.checkers import is_checker
from studio.data.formats.column_names import part_name, simplify
from studio.data.related_names import is_language
from studio.data.row import Row
from studio.data.talks.sides import find_side
from studio.data.talks.turns import to_turn

LEVELS = 3
SOURCE_SIDES, TARGET_SIDES = frozenset(("source", "src", "input")), frozenset(("target", "tgt", "output"))
"""Names of the two sides of what is translated or rewritten."""
TRANSLATED = 0.9
"""Of the entries of a list, so many hold the same in two languages: now and then one is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nested:
    """Where the rows lie inside of rows."""

    path: tuple[str, ...]
    """Names of the lists from the row inwards."""

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return self.path[:1]

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.nested", column=" / ".join(map(shorten, self.path)))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield a Row for each object of the innermost list, with the columns around it."""
        number = 0
        for row in rows:
            made = list(_unfold(row.values, self.path)) if row.problem is None else []
            for values in made or (row.values,):
                number += 1
                yield Row(row.line, values, row.problem, number, row.offset, row.raw)


def _unfold(values: Values, path: Sequence[str]) -> Iterator[Values]:
    if not path:
        yield values
        return
    around = {name: cell for name, cell in values.items() if name != path[0]}
    items = values.get(path[0])
    for item in items if isinstance(items, (list, tuple)) else ():
        if isinstance(item, Mapping):
            yield from _unfold({**around, **item}, path[1:])


def find_nested(columns: Sequence[str], rows: Sequence[Values]) -> Nested | None:
    """Return where rows lie inside of rows; None where rows ask and answer themselves, or no list does."""
    if any(_asks_and_answers(row) for row in rows):
        return None
    asking = any(_asks(row) for row in rows)
    for name in columns:
        if asking and is_checker(name, rows):
            continue  # the tests of a task are no tasks
        cells = [row[name] for row in rows if not is_empty(row.get(name))]
        paths = {path for cell in cells if (path := _find_path(cell, LEVELS)) is not None}
        if cells and len(paths) == 1 and all(_find_path(cell, LEVELS) is not None for cell in cells):
            return Nested(path=(name, *paths.pop()))
    return None


def _find_path(cell: object, levels: int) -> tuple[str, ...] | None:
    """Return the names that lead from a list to objects that are examples; None where it holds none."""
    items = [one for one in cell if isinstance(one, Mapping)] if isinstance(cell, (list, tuple)) else []
    if not items or len(items) < len(cell) or not levels:
        return None
    if (
        all(map(_asks_and_answers, items))
        or sum(map(_translates, items)) >= TRANSLATED * len(items)
        or all(map(_turns_into, items))
        or all(map(_holds_talk, items))
    ):
        return ()
    for name in items[0]:
        path = _find_path(items[0].get(name), levels - 1)
        if path is not None:
            return (str(name), *path)
    return None


def _translates(values: Values) -> bool:
    """Return whether an object holds nothing in words but the same in two languages, by its keys."""
    named = [key for key, cell in values.items() if isinstance(cell, str) and not is_empty(cell)]
    languages = [key for key in named if is_language(key) or simplify(key) == "translation"]
    return len(languages) == len(named) == 2


def _turns_into(values: Values) -> bool:
    """Return whether an object holds two texts, of which one is called the source, and the other what became of it."""
    named = {simplify(key) for key, cell in values.items() if isinstance(cell, str) and not is_empty(cell)}
    return len(named) == 2 and bool(named & SOURCE_SIDES) and bool(named & TARGET_SIDES)


def _holds_talk(values: Values) -> bool:
    """Return whether an object holds a list of turns, each with who speaks and what."""
    return any(
        isinstance(cell, (list, tuple)) and len(cell) > 1 and all(map(to_turn, cell))
        for cell in values.values()
    )


def _asks(values: Values) -> bool:
    """Return whether a row holds a question of its own."""
    return any(isinstance(cell, str) and find_side(name) == "user" for name, cell in values.items())


def _asks_and_answers(values: Values) -> bool:
    """Return whether an object holds a question and its answer."""
    sides = {find_side(name) for name, cell in values.items() if isinstance(cell, str)}
    answers = "assistant" in sides or any("answers" in part_name(name) for name in values)
    return "user" in sides and answers
