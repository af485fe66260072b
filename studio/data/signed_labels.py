"""Labels of answers that are written as 1 and -1: yes and no; 0 between them is neither: nobody voted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import LABEL
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import simplify
from studio.data.formats.format import Mapped
from studio.data.formats.kto import FORMAT, NEITHER
from studio.data.row import Row

SIGNS = {"1": True, "+1": True, "1.0": True, "-1": False, "-1.0": False, "0": NEITHER, "0.0": NEITHER}


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
        """Yield each Row with its label as yes, no or NEITHER, and anything else as it is."""
        for row in rows:
            cell = row.values.get(self.column)
            if row.problem is None and not is_empty(cell):
                values = {**row.values, self.column: SIGNS.get(str(cell).strip(), cell)}
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row


def find_signed(columns: Sequence[str], rows: Sequence[Values], format: str, chosen: Mapped) -> Signed | None:
    """Return the label of answers that is 1 or -1 throughout; None where there is none.

    format, chosen: what the person said of the data. A number that sorts texts, as a stance does, stays as it stands:
    only where question, answer and label are there is it a vote.
    """
    if format not in ("auto", FORMAT.name) or not {*chosen} <= {*FORMAT.roles}:
        return None
    match = FORMAT.match(columns, chosen, rows)
    name = match.mapping.get("label", "")
    if match.missing or simplify(name) not in LABEL:
        return None
    cells = {str(row[name]).strip() for row in rows if not is_empty(row.get(name))}
    return (
        Signed(column=name)
        if {True, False} <= {SIGNS.get(cell, cell) for cell in cells} <= {*SIGNS.values()}
        else None
    )
