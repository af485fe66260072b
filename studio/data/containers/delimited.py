"""Values separated by commas, semicolons, tabs or bars; cells stay as they are: "007", "NA", "1e5"."""

from __future__ import annotations

import csv
import itertools
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from studio.core.i18n import Text, text
from studio.data.charset import get_codec, is_utf8_among
from studio.data.containers.container import DEFAULTS, Container, ReadOptions
from studio.data.containers.csv_dialect import LAYOUT_RECORDS, QUOTE, Record, TableLayout, find_layout
from studio.data.formats.aliases import ANSWERS, INPUT, INSTRUCTION, LABEL, PRODUCTS, QUESTIONS, TEXT
from studio.data.formats.column_names import simplify
from studio.data.line_reader import LINE_BYTES, Line, LineReader
from studio.data.row import RAW_BYTES, Row, broken_row
from studio.data.row_codes import RowCode

RECORD_BYTES = 16 * 2**20
"""A quotation mark that does not close within this much is taken never to close."""
RECORD_LINES = 200_000
LEAST_BYTES = 2**16
"""Each such mark halves RECORD_BYTES down to this, so that a file full of them is not read again and again."""
HEAD_BYTES = 2**20
HEAD_LINES = 2000
LOOSE_LINES = 500
"""A record whose quotation marks do not match has at most so many lines."""
TEXTS = (".txt", ".text")
NAMES_READ = {*QUESTIONS, *INSTRUCTION, *INPUT, *TEXT, "prompt", "sentence"}
NAMES_LEARNED = {*ANSWERS, *LABEL, *PRODUCTS}
NAME_CHARACTERS = 40
STEADY = 0.95
"""Of the lines of a text file, so many have as many tabs where it is a table."""
LEAST_LINES = 5
"""A text file with fewer lines is not taken for a table by its tabs."""
CELL_CHARACTERS = 2**31 - 1
"""The csv module's own limit of 131,072 refuses long documents; RECORD_BYTES is the limit here."""


class _Unclosed(Exception):
    """A quotation mark opens a cell and nothing closes it."""


class _Cut:
    """Cuts lines into records; one that is broken costs its first line only."""

    def __init__(
        self, lines: Iterator[Line], reader: LineReader, delimiter: str, spaced: bool, quote: str = QUOTE
    ) -> None:
        self._lines, self._delimiter, self._spaced = lines, delimiter, spaced
        self._quote, self._quote_byte = quote, quote.encode()
        self._codec = get_codec(reader.encoding)
        self._newline = reader.newline.decode(self._codec)
        self._again: deque[Line] = deque()  # lines behind the one where a broken record begins
        self._unclosed = 0
        self._row = 0
        self.width = 0
        """Cells that a record should have; 0 until the header is known."""

    def __iter__(self) -> Iterator[tuple[Line, list[str] | Row, int]]:
        """Yield (line where the record begins, its cells or what is wrong with it, its number); no empty lines."""
        doubtful = False  # behind a broken quotation, its end may look like a row
        while (line := self._next()) is not None:
            number, offset, raw, whole = line
            if not raw.strip():
                continue
            self._row += 1
            if not whole:
                yield (
                    line,
                    self._refuse(line, RowCode.UNREADABLE, "too_long", megabytes=LINE_BYTES >> 20),
                    self._row,
                )
                continue
            words = self._decode(line)
            if isinstance(words, Row):
                yield line, words, self._row
            elif self._quote not in words:
                cells = words.removesuffix("\r").split(self._delimiter)
                doubtful = doubtful and len(cells) != self.width
                yield line, cells, self._row
            elif doubtful and words.count(self._quote) % 2:
                doubtful = False
                yield line, self._refuse(line, RowCode.UNREADABLE, "quotes"), self._row
            else:
                cells, raw = self._read_quoted(line, words)
                if isinstance(cells, Row):
                    doubtful = doubtful or bool(self._again)
                else:
                    doubtful = doubtful and len(cells) != self.width
                yield (number, offset, raw, True), cells, self._row

    def _next(self) -> Line | None:
        return self._again.popleft() if self._again else next(self._lines, None)

    def _decode(self, line: Line) -> str | Row:
        try:
            words = line[2].decode(self._codec)
        except UnicodeDecodeError:
            return self._refuse(line, RowCode.BAD_CHARACTERS, "not_encoding", encoding=self._codec)
        if is_utf8_among(line[2], self._codec):
            return self._refuse(line, RowCode.BAD_CHARACTERS, "mixed", encoding=self._codec)
        return self._refuse(line, RowCode.BAD_CHARACTERS, "nul") if "\0" in words else words

    def _read_quoted(self, line: Line, words: str) -> tuple[list[str] | Row, bytes]:
        """Return the cells of the record that begins in `line`, and its bytes."""
        taken = [line]
        limit_bytes = max(RECORD_BYTES >> min(self._unclosed, 24), LEAST_BYTES)

        def feed() -> Iterator[str]:
            again, lines, codec, newline = self._again, self._lines, self._codec, self._newline
            yield words + newline
            held, done = len(line[2]), 1
            while (more := again.popleft() if again else next(lines, None)) is not None:
                taken.append(more)
                data = more[2]
                held += len(data)
                if held > limit_bytes or len(taken) > RECORD_LINES or not more[3]:
                    raise _Unclosed
                if self._quote_byte in data:  # lines without one cannot end the record
                    block = data if len(taken) == done + 1 else self._join(taken[done:])
                    following = block.decode(codec)
                    if "\0" in following:
                        raise _Unclosed
                    yield following + newline
                    done = len(taken)
            raise _Unclosed

        reader = csv.reader(
            feed(),
            delimiter=self._delimiter,
            quotechar=self._quote,
            skipinitialspace=self._spaced,
            strict=True,
        )
        try:
            cells = next(reader)
            return cells, line[2] if len(taken) == 1 else self._join(taken)[:RAW_BYTES]
        except (csv.Error, _Unclosed, UnicodeDecodeError) as error:
            unclosed = not isinstance(error, csv.Error)
        self._again.extendleft(reversed(taken[1:]))
        self._unclosed += unclosed
        plain = words.removesuffix("\r").split(self._delimiter)
        if self._delimiter in "\t|" and len(plain) == self.width:  # many files with tabs do not quote at all
            return plain, line[2]
        again = [line]
        if not unclosed and (cells := self._read_loosely(again)):
            return cells, line[2] if len(again) == 1 else self._join(again)[:RAW_BYTES]
        return self._refuse(line, RowCode.UNREADABLE, "quote_open" if unclosed else "quotes"), line[2]

    def _read_loosely(self, taken: list[Line]) -> list[str]:
        """Return the cells of a record within whose quotation marks others stand alone; [] where they are no row.

        A mark ends a cell only in front of a delimiter or at the end of a line, and the cells must be as many as the
        header has, and no line in it looks like a row. Lines that are read for it join `taken`.
        """
        words = taken[0][2].decode(self._codec).removesuffix("\r")
        while self.width:
            cells = part_loosely(words, self._delimiter, self._quote)
            if cells is not None and len(cells) >= self.width:
                if len(cells) == self.width:
                    return cells
                break
            more = self._next() if len(taken) < LOOSE_LINES else None
            if more is None:
                break
            taken.append(more)
            try:
                line = more[2].decode(self._codec).removesuffix("\r")
            except UnicodeDecodeError:
                break
            if self._is_row(line):
                break
            words = f"{words}\n{line}"
        self._again.extendleft(reversed(taken[1:]))
        del taken[1:]
        return []

    def _is_row(self, line: str) -> bool:
        """Return whether a line has the cells of a row, without blanks behind its delimiters as sentences have."""
        cells = line.split(self._delimiter)
        whole = self.width > 1 and len(cells) == self.width
        return whole and (self._spaced or not any(cell[:1] == " " for cell in cells[1:]))

    def _join(self, taken: list[Line]) -> bytes:
        """Return the bytes of several lines, which are those of the file but for lines that end with CR alone."""
        newline = self._newline.encode(self._codec)
        return newline.join(one[2] for one in taken)

    def _refuse(self, line: Line, code: RowCode, reason: str, **values: object) -> Row:
        number, offset, raw, _ = line
        return broken_row(
            number, code, text(f"data.row.{reason}", **values), row=self._row, offset=offset, raw=raw
        )


def part_loosely(words: str, delimiter: str, quote: str) -> list[str] | None:
    """Return the cells of a record; a mark ends a cell only in front of a delimiter, or of the end.

    None where a cell has no end.
    """
    cells, place = [], 0
    while True:
        if not words.startswith(quote, place):
            end = words.find(delimiter, place)
            cells.append(words[place : end if end >= 0 else None])
        else:
            place += 1
            end = place
            while (end := words.find(quote, end)) >= 0 and words[end + 1 : end + 2] not in (delimiter, ""):
                end += 2 if words.startswith(quote, end + 1) else 1
            if end < 0:
                return None
            cells.append(words[place:end].replace(quote * 2, quote))
            end = end + 1 if end + 1 < len(words) else -1
        if end < 0:
            return cells
        place = end + 1


def accept(suffixes: tuple[str, ...], head: bytes, suffix: str) -> bool:
    """Return whether the file's name says so, or the first line of a text: any text could be a table."""
    return suffix in suffixes or (suffix in TEXTS and _names_columns(head))


def _names_columns(head: bytes) -> bool:
    """Return whether the first line of a text names a question and its answer, or a text and its label."""
    line, _, rest = head.decode("utf-8", "replace").lstrip("\ufeff").partition("\n")
    for delimiter in (",", ";"):
        names = [simplify(name.strip().strip('"')) for name in line.split(delimiter)]
        if len(names) > 1 and {*names} & NAMES_READ and {*names} & NAMES_LEARNED:
            return all(len(name) <= NAME_CHARACTERS for name in names) and delimiter in rest
    return False


def accept_tabs(head: bytes, suffix: str) -> bool:
    """Return whether it is a table with tabs: by the name, or, in a text file, since every line has as many.

    So is one with bars; a few lines may have others.
    """
    if suffix in (".tsv", ".tab"):
        return True
    lines = [line for line in head.split(b"\n")[:-1] if line.strip()][:LAYOUT_RECORDS]
    while (
        lines and lines[0].startswith(b"#") and b"\t" not in lines[0]
    ):  # what cards and lists say of themselves
        del lines[0]
    return (
        suffix in TEXTS and len(lines) >= LEAST_LINES and any(_are_cut(lines, sign) for sign in (b"\t", b"|"))
    )


def _are_cut(lines: list[bytes], sign: bytes) -> bool:
    """Return whether almost all lines have a sign equally often, inside of them and alone."""
    count, often = Counter(line.count(sign) for line in lines).most_common(1)[0]
    if not count or often < STEADY * len(lines):
        return False
    framed = any(line.strip().startswith(b"|") or b"||" in line for line in lines)
    return sign == b"\t" or not framed


def read_layout(
    lines: LineReader, options: ReadOptions, preferred: str
) -> tuple[TableLayout, Iterator[Line]]:
    """Return how the table lies, with the reasons, and all lines, those that it was found by included.

    Raises StudioError for an unusable header.
    """
    head: list[Line] = []
    size_bytes, whole = 0, False
    rest = iter(lines)
    for line in rest:
        head.append(line)
        size_bytes += len(line[2])
        if size_bytes > HEAD_BYTES or len(head) >= HEAD_LINES:
            break
    else:
        whole = True

    def read(delimiter: str, spaced: bool, quote: str = QUOTE) -> list[Record]:
        found: list[Record] = []
        cut = _Cut(iter(head), lines, delimiter, spaced, quote)
        for line, cells, _ in itertools.islice(cut, LAYOUT_RECORDS):
            if isinstance(cells, list):
                found.append((line[0], cells))
            elif not whole and cells.problem.message.id == "data.row.quote_open":
                return found  # the head ends within this record
        return found if whole or len(found) < 2 or len(found) == LAYOUT_RECORDS else found[:-1]

    return find_layout(read, options, preferred), itertools.chain(head, rest)


def list_headers(stream: BinaryIO, encoding: str, name: str) -> list[Text]:
    """Return what is to be told of each line below the names of the columns that is no row."""
    csv.field_size_limit(CELL_CHARACTERS)
    layout, _ = read_layout(LineReader(stream, encoding), DEFAULTS, "\t" if name == "tsv" else ",")
    return [reason for reason in layout.reasons if reason.id == "data.table.second_header"]


def iterate(
    preferred: str, stream: BinaryIO, encoding: str, options: ReadOptions = DEFAULTS
) -> Iterator[Row]:
    """Yield a Row a record; `line` is the line where the record begins. Raises StudioError for an unusable header."""
    csv.field_size_limit(CELL_CHARACTERS)
    reader = LineReader(stream, encoding)
    layout, lines = read_layout(reader, options, preferred)
    columns, width = layout.columns, len(layout.columns)
    cut = _Cut(lines, reader, layout.delimiter, layout.spaced, layout.quote)
    cut.width = width
    behind_header = 0
    for (number, offset, raw, _), cells, row in cut:
        if number <= layout.header_line:
            behind_header = row
        elif isinstance(cells, Row):
            yield broken_row(
                number,
                cells.problem.code,
                cells.problem.message,
                row=row - behind_header,
                offset=offset,
                raw=raw,
            )
        elif behind_header == row - 1 and width > 1 and len(cells) == 1 and cells[0].startswith("#"):
            behind_header = row  # a note above the table
        elif len(cells) == width:
            yield Row(number, dict(zip(columns, cells, strict=True)), None, row - behind_header, offset, raw)
        else:
            message = text("data.row.cells", found=len(cells), expected=width)
            yield broken_row(
                number, RowCode.UNREADABLE, message, row=row - behind_header, offset=offset, raw=raw
            )


CSV = Container(
    name="csv", suffixes=(".csv",), accepts=partial(accept, (".csv",)), iterate=partial(iterate, ",")
)
TSV = Container(
    name="tsv",
    suffixes=(".tsv", ".tab"),
    accepts=accept_tabs,
    iterate=partial(iterate, "\t"),
)
