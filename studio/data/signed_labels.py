"""Labels of answers that are written as 1 and -1: yes and no; 0 between them is neither, and none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import ANSWERS, LABEL, LISTS
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import find_core, simplify
from studio.data.row import Row

SIGNS = {"1": True, "+1": True, "1.0": True, "-1": False, "-1.0": False, "0": None, "0.0": None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """A column whose 1 and -1 become yes and no."""

    column: str

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields: none."""
        return ()

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.signed", column=shorten(self.column))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with its label as yes or no; what is neither is null, and anything else as it is."""
        for row in rows:
            cell = row.values.get(self.column)
            if row.problem is None and not is_empty(cell):
                values = {**row.values, self.column: SIGNS.get(str(cell).strip(), cell)}
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row


def find_signed(columns: Sequence[str], rows: Sequence[Values]) -> Signed | None:
    """Return the label of answers that is 1 or -1 throughout; None where there is none."""
    if not any(simplify(name) in (*ANSWERS, *LISTS) or find_core(name) in ANSWERS for name in columns):
        return None  # a number that sorts texts is learned as it stands
    for name in columns:
        cells = {str(row[name]).strip() for row in rows if not is_empty(row.get(name))}
        said = {SIGNS[cell] for cell in cells if cell in SIGNS}
        if simplify(name) in LABEL and cells <= {*SIGNS} and {True, False} <= said:
            return Signed(column=name)
    return None
