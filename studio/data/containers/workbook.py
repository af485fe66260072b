"""Excel workbooks: every cell as the text that a person sees; what a workbook may unpack to is limited beforehand."""

from __future__ import annotations

import datetime
import itertools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, BinaryIO

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.packages import import_package
from studio.data.containers.container import (
    COLUMN_LIMIT,
    ROW_BYTES,
    Container,
    ReadOptions,
    number_names,
    refuse_file,
)
from studio.data.containers.csv_dialect import holds_values, is_like_the_rest
from studio.data.containers.second_header import drop_headers
from studio.data.row import Row

ROW_LIMIT = 1_048_576
"""What a sheet of Excel can have."""
CELL_LIMIT = 50_000_000
PARTS_LIMIT = 10_000
UNPACKED_LIMIT_BYTES = 4 * 2**30
STRINGS_LIMIT_BYTES = 2**28
"""The texts of all sheets lie in one table, which is held in memory."""
PART_LIMIT_BYTES = 2**27
RATIO_LIMIT, RATIO_FROM_BYTES = 200, 2**26
"""A workbook unpacks to five to thirty times its size, one of equal cells to a hundred times."""
HEADER_ROWS = 20
"""Above the names of the columns there may be a title and the like."""
ENCRYPTED_MARK = b"\xd0\xcf\x11\xe0"
"""Begins a workbook under a password, and one of Excel before 2007."""
ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
PADDED = re.compile(r"0+")
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    KeyError,
    IndexError,
    ValueError,
    TypeError,
    AttributeError,
    SyntaxError,  # what parsers of XML raise
    RuntimeError,  # a part under a password
    NotImplementedError,  # a way of packing that is not known
    OverflowError,
)
"""What the library raises for one damaged workbook or another."""
Cells = dict[int, str]
"""The cells of a row that hold something, by their column from 1."""


def accept(head: bytes, suffix: str) -> bool:
    """Return whether it is named so, and is a zip file or one under a password."""
    return suffix in CONTAINER.suffixes and head.startswith((b"PK", ENCRYPTED_MARK))


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield the rows of one sheet: `options.sheet`, else the first that has any; `line` is the row of the sheet.

    `stream` can seek. All values are text; empty cells are "". Raises StudioError: damaged, too large, no names.
    """
    try:
        book = _open(stream, options.name)
        with closing(book):
            names = [options.sheet] if options.sheet else list_sheets(stream, options.name)
            for name in names[:1]:
                yield from _read_sheet(book, name, options)
    except BROKEN as error:
        raise refuse_file(options.name, "workbook_broken") from error


def list_sheets(stream: BinaryIO, name: str) -> list[str]:
    """Return the names of the visible sheets that hold a row below their first. Raises StudioError."""
    try:
        with closing(_open(stream, name)) as book:
            visible = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
            filled = [sheet for sheet in visible or book.worksheets if _has_rows(book, sheet)]
            # A sheet of one column beside tables says what they are.
            return [sheet.title for sheet in sorted(filled, key=lambda sheet: (sheet.max_column or 2) < 2)]
    except BROKEN as error:
        raise refuse_file(name, "workbook_broken") from error


def list_headers(stream: BinaryIO, options: ReadOptions) -> list[Text]:
    """Return what is to be told of each row below the names of the columns that holds no data. Raises StudioError."""
    try:
        with closing(_open(stream, options.name)) as book:
            names = [options.sheet] if options.sheet else list_sheets(stream, options.name)
            found = [sheet for sheet in book.worksheets if sheet.title in names[:1]]
            lines = [
                _find_header(_limit(_read_cells(book, sheet), options.name), options)[2] for sheet in found
            ]
    except BROKEN as error:
        raise refuse_file(options.name, "workbook_broken") from error
    return [text("data.table.second_header", line=line) for found in lines for line in found]


def has_bare_formulas(rows: Sequence[Mapping[str, object]]) -> bool:
    """Return whether a cell of `rows` is a formula whose value the workbook does not hold."""
    return any(isinstance(cell, Formula) for row in rows for cell in row.values())


class Formula(str):
    """The text of a formula whose value was never calculated."""

    __slots__ = ()


def _open(stream: BinaryIO, name: str) -> Any:
    openpyxl = import_package("openpyxl", "openpyxl")
    stream.seek(0)
    if stream.read(4) == ENCRYPTED_MARK:
        raise refuse_file(name, "workbook_locked")
    stream.seek(0)
    _check_size(stream, name)
    stream.seek(0)
    return openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)


def _check_size(stream: BinaryIO, name: str) -> None:
    """Look at what the parts say they unpack to (more is never unpacked), and for entities. Raises StudioError."""
    with zipfile.ZipFile(stream) as archive:
        parts = archive.infolist()
        unpacked_bytes = sum(part.file_size for part in parts)
        packed_bytes = sum(part.compress_size for part in parts)
        if (
            unpacked_bytes > max(RATIO_FROM_BYTES, RATIO_LIMIT * packed_bytes)
            or unpacked_bytes > UNPACKED_LIMIT_BYTES
            or len(parts) > PARTS_LIMIT
        ):
            raise _refuse_size(name)
        for part in parts:
            if not part.filename.endswith((".xml", ".rels")):
                continue
            with archive.open(part) as opened:
                head = opened.read(2**16)
            if b"<!DOCTYPE" in head:
                raise refuse_file(name, "workbook_broken")
            # Sheets are read row by row, but for one that does not state its size; all else is read at once.
            if part.filename.startswith("xl/worksheets/") and b"<dimension" in head:
                continue
            strings = part.filename.endswith("sharedStrings.xml")
            if part.file_size > (STRINGS_LIMIT_BYTES if strings else PART_LIMIT_BYTES):
                raise _refuse_size(name)


def _refuse_size(name: str) -> StudioError:
    return refuse_file(name, "workbook_large", rows=ROW_LIMIT, cells=CELL_LIMIT // 10**6)


def _has_rows(book: Any, sheet: Any) -> bool:
    filled = 0
    for _, _, cells in _read_cells(book, sheet):
        filled += bool(cells)
        if filled > 1:
            return True
    return False


def _read_sheet(book: Any, title: str, options: ReadOptions) -> Iterator[Row]:
    found = next((sheet for sheet in book.worksheets if sheet.title == title), None)
    if found is None:
        sheets = ", ".join(sheet.title for sheet in book.worksheets)[:120]
        raise refuse_file(options.name, "sheet", sheet=title, sheets=sheets)
    rows = _limit(_read_cells(book, found), options.name)
    header, below, _ = _find_header(rows, options)
    for number, (line, cells) in enumerate(itertools.chain(below, rows), start=1):
        values = {name: cells.get(column, "") for column, name in header.items()}
        if extra := cells.keys() - header.keys():  # nothing is lost: such a column goes by its place
            values |= {f"column_{column}": cells[column] for column in sorted(extra)}
        yield Row(line, values, None, number)


def _limit(rows: Iterator[tuple[int, int, Cells]], name: str) -> Iterator[tuple[int, Cells]]:
    """Yield the rows that hold something. Raises StudioError when they are too many."""
    cells_read = 0
    for line, size, cells in rows:
        cells_read += size
        if line > ROW_LIMIT or cells_read > CELL_LIMIT or max(cells, default=0) > COLUMN_LIMIT:
            raise _refuse_size(name)
        if cells:
            yield line, cells


def _find_header(
    rows: Iterator[tuple[int, Cells]], options: ReadOptions
) -> tuple[dict[int, str], list[tuple[int, Cells]], list[int]]:
    """Return the names by column, the rows below that are read already, and which rows name the columns once more.

    The names stand in row `options.header_row`, else in the first row that is more than half as full as the fullest
    of the first HEADER_ROWS: above it there may be a title.
    """
    if options.header_row < 0:
        return {}, [], []
    early: list[tuple[int, Cells]] = []
    for row in rows:
        if row[0] >= options.header_row:
            early.append(row)
        if options.header_row and early or len(early) == HEADER_ROWS:
            break
    if not early:
        return {}, [], []
    fullest = 1 if options.header_row else max(len(cells) for _, cells in early)
    place = next(i for i, (_, cells) in enumerate(early) if 2 * len(cells) > fullest)
    first = early[place][1]
    below = [(line, [cells.get(column, "") for column in first]) for line, cells in early[place + 1 :]]
    if not options.header_row and (
        holds_values([*first.values()]) or is_like_the_rest([*first.values()], below)
    ):
        return {column: f"column_{column}" for column in early[place][1]}, early[place:], []
    named, more = [cell.strip() for cell in first.values()], 0
    if not options.header_row:
        named, more = drop_headers(named, [cells for _, cells in below])
    names = number_names(named, options.name)
    place += 1
    again = [line for line, _ in early[place : place + more]]
    return dict(zip(first, names, strict=True)), early[place + more :], again


def _read_cells(book: Any, sheet: Any) -> Iterator[tuple[int, int, Cells]]:
    """Yield (row of the sheet, cells it has, {column: text} of those that are not empty)."""
    from openpyxl.worksheet._reader import FORMULA_TAG, WorkSheetParser

    class Parser(WorkSheetParser):
        """The library's own reader of a sheet, which also tells of formulas without a value."""

        def parse_cell(self, element: Any) -> dict[str, Any]:
            cell = super().parse_cell(element)
            if cell["value"] is None and (formula := element.find(FORMULA_TAG)) is not None:
                cell["value"] = Formula(f"={formula.text or ''}")
            return cell

    # Not by the worksheet's own iteration: it trusts the size that the file states, and fills every gap up to it.
    with sheet._get_source() as opened:
        source = _RowLimit(opened)
        parser = Parser(
            source,
            sheet._shared_strings,
            data_only=True,
            epoch=book.epoch,
            date_formats=book._date_formats,
            timedelta_formats=book._timedelta_formats,
        )
        formats = book._number_formats
        styles = book._cell_styles
        for line, cells in parser.parse():
            source.row_bytes = 0
            found: Cells = {}
            for cell in cells:
                value = cell["value"]
                if value is not None and (words := _say(value, cell["style_id"], styles, formats)).strip():
                    found[cell["column"]] = words
            yield line, len(cells), found


class _RowLimit:
    """A stream that ends in a ValueError when one row goes on for too long: the library holds it whole."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.row_bytes = stream, 0

    def read(self, size: int = -1) -> bytes:
        found = self.stream.read(size)
        self.row_bytes += len(found)
        if self.row_bytes > ROW_BYTES:
            raise ValueError("a row without end")
        return found


def _say(value: Any, style: int, styles: Any, formats: Any) -> str:
    """Return the text of a cell."""
    if isinstance(value, str):
        if "_x" in value and type(value) is str:
            return ESCAPED.sub(_unescape, value)
        return value
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        # Beyond 15 digits Excel keeps none, so that writing them all out would show digits that nobody typed.
        value = int(value) if value.is_integer() and abs(value) < 1e15 else value
    if isinstance(value, int):
        return _pad(value, style, styles, formats)
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)


def _unescape(found: re.Match[str]) -> str:
    letter = int(found[1], 16)
    return found[0] if letter == 0 or 0xD800 <= letter < 0xE000 else chr(letter)  # NUL and halves are no text


def _pad(value: int, style: int, styles: Any, formats: Any) -> str:
    """Return a whole number with the zeros that its format puts in front: 7 as "007" under the format 000."""
    number = styles[style].numFmtId - 164  # below are Excel's own formats; the file's begin there
    shown = formats[number] if 0 <= number < len(formats) else ""
    return str(value).zfill(len(shown)) if PADDED.fullmatch(shown) else str(value)


CONTAINER = Container(name="xlsx", suffixes=(".xlsx", ".xlsm"), accepts=accept, iterate=iterate, binary=True)
