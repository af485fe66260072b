"""Plain text and Markdown: a small file is one row, a larger one a row a paragraph, section or line."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from studio.core.facts import Choice
from studio.core.i18n import text
from studio.data.charset import JoinedBytes, get_codec, read_head
from studio.data.containers.container import DEFAULTS, HEAD_BYTES, Container, ReadOptions, parse_json
from studio.data.containers.json_stream import find_values
from studio.data.line_reader import Line, LineReader
from studio.data.row import RAW_BYTES, Row, broken_row
from studio.data.row_codes import RowCode

COLUMN = "text"
ONE_ROW_BYTES = 2**14
"""Up to so much a file is one row: some 4,000 tokens, which a model reads at once."""
PIECE_BYTES = 4 * 2**20
"""Longest row that is read; text of this length without a blank line is not meant to be one example."""
HEADING = re.compile(r"#{1,6}\s")
HEADINGS = re.compile(r"^#{1,6}\s", re.MULTILINE)
BLANK_LINE = re.compile(r"\S[^\n]*\n[ \t]*\n\s*\S")
DIVIDER = re.compile(r"[ \t]*(?:<\|endoftext\|>|<\|end_of_text\|>|</s>|<eos>|<EOS>)[ \t]*")
"""A line of its own between two documents of a corpus."""
DIVIDERS = re.compile(rf"^{DIVIDER.pattern}$", re.MULTILINE)
MARKED = re.compile(r"^.+(?:__eou__|<eou>).+(?:__eou__|<eou>)[ \t]*$", re.MULTILINE | re.IGNORECASE)
"""A line that is a talk: marks end what each says."""
SIGNS = re.compile(r"[ \t]*(?<![|+$@#&§^~])(?=[+#&~]*[|$@§^])([|+$@#&§^~]{3,12})[ \t]*")
"""What may stand between the cells of a line: `|||`, ` +++$+++ `."""
DASHES = (" - ", " – ", " — ", " = ")
"""What stands between a word and what is said of it in a list of words, ..."""
CLOCK = re.compile(r"\d{1,2}:\d{2}")
LEAST_ENTRIES, WORD_CHARACTERS = 8, 40
"""... where each of so many lines has it, behind no more letters."""
SIGN_LINES = 5
"""So many lines at least have as many such signs, and all that are looked at, where they are a table."""
FENCE = re.compile(r" {0,3}(```|~~~)")


def accept(suffixes: tuple[str, ...], head: bytes, suffix: str) -> bool:
    """Return whether the file's name says so: any bytes could be text, but objects are no sentences."""
    return suffix in suffixes and not _are_objects(head)


def _are_objects(head: bytes) -> bool:
    """Return whether a text begins with a whole JSON object behind which others begin, or with a list of them."""
    begun = head.lstrip()
    if begun.startswith(b"["):
        begun = begun[1:].lstrip()
    if not begun.startswith(b"{"):
        return False
    first = next(find_values(begun), None)
    if not isinstance(first, tuple):
        return False
    try:
        found = parse_json(begun[: first[1]])
    except ValueError:
        return False
    following = begun[first[1] :].lstrip(b" \t\r\n,")[:1]
    return isinstance(found, dict) and bool(found) and following in (b"{", b"]")


def choose_pieces(head: bytes, options: ReadOptions = DEFAULTS, *, markdown: bool = False) -> Choice:
    """Return what a row is (file, documents, paragraphs, sections or lines) and why.

    head: the first HEAD_BYTES of the file as UTF-8, all of it when it is shorter. A file of up to 16 KiB is one
    row; a larger one is cut at blank lines, Markdown at its headings, and at every line where it has neither.
    """
    if options.pieces:
        return Choice(value=options.pieces, reason=text("data.plain.chosen"))
    words = head.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    if DIVIDERS.search(words):
        return Choice(value="documents", reason=text("data.plain.documents"))
    if len(MARKED.findall(words)) > 1:
        return Choice(value="lines", reason=text("data.plain.lines"))
    if len(head) <= ONE_ROW_BYTES:
        return Choice(value="file", reason=text("data.plain.file", kilobytes=ONE_ROW_BYTES >> 10))
    if markdown and len(HEADINGS.findall(words)) > 1:
        return Choice(value="sections", reason=text("data.plain.sections"))
    if BLANK_LINE.search(words):
        return Choice(value="paragraphs", reason=text("data.plain.paragraphs"))
    return Choice(value="lines", reason=text("data.plain.lines"))


def iterate(
    markdown: bool, stream: BinaryIO, encoding: str, options: ReadOptions = DEFAULTS
) -> Iterator[Row]:
    """Yield a Row with the column `text` for each piece of the file that is not blank (choose_pieces).

    Lines within a row are joined by LF, blank lines around it left out; all else stays as it is.
    """
    start = stream.read(HEAD_BYTES)
    head = read_head(io.BytesIO(start), encoding)
    sign = "" if markdown or options.pieces else find_sign(head)
    pieces = "lines" if sign else choose_pieces(head, options, markdown=markdown).value
    lines = LineReader(JoinedBytes(start, stream), encoding)
    for row, piece in enumerate(_gather(lines, pieces, markdown), start=1):
        found = piece.make_row(row, get_codec(lines.encoding))
        yield _part_cells(found, sign) if sign and found.problem is None else found


def find_sign(head: bytes) -> str:
    """Return the run of signs that parts every line into as many cells; "" where the text is no such table."""
    words = head.decode("utf-8", "replace")
    whole = words if words.endswith("\n") else words.rpartition("\n")[0]  # the head may end within a line
    lines = [line for line in whole.splitlines() if line.strip()]
    found = {tuple(SIGNS.findall(line)) for line in lines}
    signs = found.pop() if len(found) == 1 and len(lines) >= SIGN_LINES else ()
    found = [dash for dash in DASHES if lines and dash in lines[0]]
    dash = min(found, key=lines[0].index) if found else ""
    return dash if dash and _are_entries(lines, dash) else _find_run(signs, lines)


def _find_run(signs: tuple[str, ...], lines: list[str]) -> str:
    return signs[0] if len({*signs}) == 1 and not all(SIGNS.fullmatch(line) for line in lines) else ""


def _are_entries(lines: list[str], dash: str) -> bool:
    """Return whether each line is a word and what is said of it; a time and who wrote then are none."""
    halves = [line.strip().partition(dash) for line in lines]
    words = [word for word, _, said in halves if said and len(word) <= WORD_CHARACTERS]
    own = 2 * len({*words}) > len(lines)
    return len(words) == len(lines) >= LEAST_ENTRIES and own and not any(map(CLOCK.search, words))


def _part_cells(row: Row, sign: str) -> Row:
    """Return a line as a row of the cells between its signs, which have no names."""
    most = 1 if sign in DASHES else -1  # what is said of a word may have dashes of its own
    cells = [cell.strip() for cell in row.values[COLUMN].split(sign, most)]
    values = {f"column_{place}": cell for place, cell in enumerate(cells, start=1)}
    return Row(row.line, values, None, row.row, row.offset, row.raw)


class _Piece:
    """The lines of one row, as far as they are read."""

    def __init__(self) -> None:
        self.first: Line | None = None
        self.words = io.StringIO()
        self.raw = bytearray()
        self.size_bytes = 0
        self.broken = False

    def add(self, line: Line, words: str | None, newline: bytes) -> None:
        self.size_bytes += len(line[2]) + len(newline)
        if not line[3]:
            self.size_bytes += PIECE_BYTES
        if self.first is None:
            self.first = line
            self.raw += line[2][:RAW_BYTES]
        elif len(self.raw) < RAW_BYTES:
            self.raw += newline + line[2]
        self.broken |= words is None
        if words and self.size_bytes <= PIECE_BYTES:
            self.words.write(words)
        self.words.write("\n" if self.size_bytes <= PIECE_BYTES else "")

    def make_row(self, row: int, codec: str) -> Row:
        number, offset, _, _ = self.first
        words = self.words.getvalue()
        end = len(words.rstrip())
        words = words[:end] + words[end:].partition("\n")[0]
        raw = bytes(self.raw)
        if self.size_bytes > PIECE_BYTES:
            problem = RowCode.UNREADABLE, text("data.row.too_long", megabytes=PIECE_BYTES >> 20)
        elif self.broken:
            problem = RowCode.BAD_CHARACTERS, text("data.row.not_encoding", encoding=codec)
        elif "\0" in words:
            problem = RowCode.BAD_CHARACTERS, text("data.row.nul")
        else:
            return Row(number, {COLUMN: words}, None, row, offset, raw)
        return broken_row(number, *problem, row=row, offset=offset, raw=raw)


def _gather(reader: LineReader, pieces: str, markdown: bool) -> Iterator[_Piece]:
    """Yield the pieces that hold more than blank lines."""
    codec = get_codec(reader.encoding)
    piece = _Piece()
    fenced = blank_before = False
    for line in reader:
        try:
            words = line[2].decode(codec).removesuffix("\r")
        except UnicodeDecodeError:
            words = None
        if pieces == "documents" and words is not None and DIVIDER.fullmatch(words):
            if piece.first:
                yield piece
                piece = _Piece()
            continue
        blank = words is not None and not words.strip()
        within = fenced
        if markdown and words and FENCE.match(words):
            fenced = not fenced
        begins = (
            pieces == "lines"
            or (pieces == "paragraphs" and blank_before and not blank and not within)
            or (
                pieces == "sections" and not within and words is not None and HEADING.match(words) is not None
            )
        )
        if begins and piece.first:
            yield piece
            piece = _Piece()
        if piece.first or not blank:
            piece.add(line, words, reader.newline)
        blank_before = blank
    if piece.first:
        yield piece


TXT = Container(
    name="txt",
    suffixes=(".txt", ".text"),
    accepts=partial(accept, (".txt", ".text")),
    iterate=partial(iterate, False),
)
MD = Container(
    name="md",
    suffixes=(".md", ".markdown"),
    accepts=partial(accept, (".md", ".markdown")),
    iterate=partial(iterate, True),
)
