"""One row of a data set as it was found, and what is wrong with a row that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from studio.core.i18n import Text, text
from studio.data.row_codes import RowCode


class RowError(Exception):
    """One row cannot be used. `code` says what was found."""

    def __init__(self, code: RowCode, message: Text) -> None:
        super().__init__(code, message.id)
        self.code = code
        self.message = message


@dataclass(frozen=True, kw_only=True, slots=True)
class RowProblem:
    """What was found in one row: it was refused, or is used and the person should know (its code says which)."""

    code: RowCode
    message: Text
    line: int
    """Line of the file where the row begins, from 1; the row's number in containers without lines."""
    row: int = 0
    """Number of the row in its file, from 1; 0 when it stands for a whole file."""
    offset: int = 0
    """Byte of the file (as it is after unpacking) where the row begins; 0 in containers without lines."""
    file: str = ""
    """Name of the file inside a folder or archive; "" where there is only one."""
    raw: bytes = b""
    """The row as it stands in the file, at most RAW_BYTES of it; empty in containers without lines."""

    @property
    def sentence(self) -> Text:
        """The problem with its place: "Line 12: ..." or "train.jsonl, row 12: ...", where lines hold several rows."""
        unit, number = name_place(self.line, self.row)
        if self.file:
            return text(f"data.problem.{unit}.in_file", file=self.file, problem=self.message, number=number)
        return text(f"data.problem.{unit}", problem=self.message, number=number)


def name_place(line: int, row: int) -> tuple[str, int]:
    """Return how a person finds a row, and its number: by "line", or by "row" where one line holds several."""
    return ("row", row) if row > line else ("line", line)


RAW_BYTES = 2**20


@dataclass(slots=True)
class Row:
    """One row as it was found; not frozen, since one is made for each of millions.

    Where `problem` is set the row could not be read and `values` is empty.
    """

    line: int
    """As in RowProblem, like `row`, `offset` and `raw`."""
    values: Mapping[str, object] = field(default_factory=dict)
    problem: RowProblem | None = None
    row: int = 0
    offset: int = 0
    raw: bytes = b""


def broken_row(
    line: int, code: RowCode, message: Text, *, row: int = 0, offset: int = 0, raw: bytes = b""
) -> Row:
    """Return a Row that stands for one that could not be read."""
    raw = raw[:RAW_BYTES]
    problem = RowProblem(code=code, message=message, line=line, row=row, offset=offset, raw=raw)
    return Row(line, {}, problem, row, offset, raw)


def list_columns(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the names of all columns of `rows` in the order of their first appearance."""
    return tuple(dict.fromkeys(str(name) for row in rows for name in row.values))
