"""Prompts that are written once for all rows, with the names of columns where the words of each row belong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import ANSWERS, EXPECTED, INSTRUCTION, LABEL, QUESTIONS
from studio.data.formats.cells import Values, is_empty, shorten, show_names
from studio.data.formats.column_names import find_core, simplify
from studio.data.formats.context import say_material
from studio.data.row import Row

NAMED = re.compile(
    r"\{\{\s*([\w .-]{1,40}?)\s*\}\}|\{\s*([\w .-]{1,40}?)\s*\}"
    r"|<([A-Za-z][\w .-]{0,39})>|\[([A-Za-z][\w .-]{0,39})\](?!\()"
)
"""A name in the brackets of a template: `{{name}}`, `{name}`, `<name>`, `[NAME]`."""
ASKING = ("prompt", *QUESTIONS, *INSTRUCTION)
FILLED = 0.8
"""Of the cells, so many name other columns where they are templates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """Cells that name other columns of their row: with the words of these in their place."""

    column: str
    named: tuple[str, ...]

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields: what stands in a prompt now is read there."""
        return self.named if _is_called(self.column, ASKING) else ()

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.filled", column=shorten(self.column), named=show_names(self.named))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its template filled in; a name whose cell is empty stays, and is told of later."""
        for row in rows:
            cell = row.values.get(self.column)
            if row.problem is None and isinstance(cell, str):
                filled = NAMED.sub(lambda found, row=row: self._say(found, row.values), cell)
                values = {name: cell for name, cell in row.values.items() if name not in self.consumed}
                values[self.column] = filled
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row

    def _say(self, found: re.Match[str], values: Values) -> str:
        name = _resolve(found, self.named)
        return found[0] if not name or is_empty(values.get(name)) else say_material(values[name])


def find_filled(columns: Sequence[str], rows: Sequence[Values]) -> Filled | None:
    """Return the column of templates and the columns that they name; None where there is none.

    An answer stays as it is, and what is answered in a template is not put into it.
    """
    answers = [name for name in columns if _is_called(name, (*ANSWERS, *EXPECTED, *LABEL))]
    for column in columns:
        if column in answers:
            continue
        cells = [row[column] for row in rows if isinstance(row.get(column), str) and row[column]]
        others = [name for name in columns if name != column]
        found = [_list_named(cell, others) for cell in cells]
        named = tuple(dict.fromkeys(name for names in found for name in names))
        if named and sum(map(bool, found)) >= FILLED * len(cells) and not {*named} & {*answers}:
            return Filled(column=column, named=named)
    return None


def _is_called(name: str, known: Sequence[str]) -> bool:
    return bool({simplify(name), find_core(name)} & {*known})


def _list_named(cell: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that a text names in brackets; a pair of tags around words names none."""
    found = (match for match in NAMED.finditer(cell) if f"</{match[3]}>" not in cell)
    return [name for match in found if (name := _resolve(match, columns))]


def _resolve(found: re.Match[str], columns: Sequence[str] | Mapping[str, object]) -> str:
    wanted = simplify(next(filter(None, found.groups()), ""))
    return next((name for name in columns if wanted and simplify(name) == wanted), "")
