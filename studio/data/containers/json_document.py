"""One JSON text in a file: an array of objects, an object around one, an object of columns, or objects in a row."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import BinaryIO

from studio.core.i18n import text
from studio.data.containers.container import DEFAULTS, ROW_BYTES, Container, ReadOptions, refuse_file
from studio.data.containers.json_rows import find_rows, name_splits
from studio.data.containers.json_stream import BLANKS, JsonWindow, find_list, find_values, scan
from studio.data.containers.json_talk import find_talk, find_texts
from studio.data.containers.json_text import TALK, parse_json, read_object
from studio.data.row import RAW_BYTES, Row, broken_row
from studio.data.row_codes import RowCode

OBJECT_BYTES = 8 * 2**20
"""A single object up to this size is parsed to see what it is; in a larger one a list of objects is looked for."""
COLUMNS_BYTES = 128 * 2**20
"""An object of columns is parsed as a whole, since its first row needs the last column."""
SEARCHED_BYTES = 2 * 2**30
"""So much is looked through for the ends of values that have none, some 20 s; a file with more is given up."""
LEAST_BYTES = 2 * 2**20
"""Each such value halves ROW_BYTES down to this."""
NAME_BYTES = 1024
FIRST_KEY = re.compile(rb'\{\s*("(?:[^"\\]|\\.)*")\s*:')
SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s,"]+|"')
OPEN, CLOSED = b"{}"
OVERLAP_BYTES = 1024
"""So much of the data is searched again with what follows it."""
BEFORE_NESTED = (b":", b"[", b"{", b"")
CLOSERS = re.compile(rb"[\]},\s]*")
GOES_ON = re.compile(rb"[\]}\s]*,\s*\{")
OBJECTS = re.compile(rb"\[\s*\{")
WRITTEN_TWICE = re.compile(rb'\s*"\s*[\[{]')
TURN_KEYS = {"role", "from"}
VERSION_KEYS = {"versions", "currentlySelected"}
"""Keys of a turn that was written several times."""


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the file begins like a JSON array or object, or like a string that holds one."""
    return head.lstrip()[:1] in (b"[", b"{") or WRITTEN_TWICE.match(head) is not None


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions = DEFAULTS) -> Iterator[Row]:
    """Yield the rows; `line` is where the row's object begins. A broken element costs that element only.

    Raises StudioError when the file is one object too large for its memory, or broken throughout.
    """
    window = JsonWindow(stream, encoding)
    if options.sheet:
        yield from _number((_load_whole(window) or {}).get(options.sheet, []), window)
        return
    if window.peek() == b'"' and (inner := _read_inner(window)) is not None:
        yield from iterate(io.BytesIO(inner.encode("utf-8", "surrogatepass")), "utf-8", options)
        return
    reader = _Reader(window, options.name)
    if window.peek() == b"{":
        yield from _read_objects(window, reader)
        return
    if window.peek() == b"[" and (talk := find_talk(window)):
        yield Row(window.line, {TALK: talk}, None, 1, window.offset)
        return
    if window.peek() == b"[" and (texts := find_texts(window)):
        yield from _number(texts, window)
        return
    while window.peek() == b"[":
        window.move(window.place + 1)
        yield from reader.read_list()
    yield from reader.read_rest()


def list_splits(stream: BinaryIO, encoding: str) -> dict[str, str]:
    """Return train, validation and test with the key whose list of objects is that split; {} for other files.

    What holds no `train` has its first list in its place. Files above COLUMNS_BYTES are not parsed for it.
    """
    window = JsonWindow(stream, encoding)
    return name_splits(_load_whole(window) or {}) if window.peek() == b"{" else {}


def _load_whole(window: JsonWindow) -> dict | None:
    """Return the object that a file is; None for anything else, and for a larger one."""
    while window.held_bytes <= COLUMNS_BYTES and window.grow():
        pass
    try:
        whole = parse_json(window.data[window.place :]) if window.ended else None
    except ValueError:
        return None
    return whole if isinstance(whole, dict) else None


def _read_inner(window: JsonWindow) -> str | None:
    """Return the JSON in a file that is one JSON string, as what was written twice is; None for anything else."""
    while window.held_bytes <= COLUMNS_BYTES and window.grow():
        pass
    try:
        inner = parse_json(window.data[window.place :]) if window.ended else None
    except ValueError:
        return None
    return inner if isinstance(inner, str) and inner.lstrip()[:1] in ("[", "{") else None


def _read_objects(window: JsonWindow, reader: _Reader) -> Iterator[Row]:
    """Yield the rows of a text that begins with an object."""
    begin, end = _find_first(window, OBJECT_BYTES)
    place = _find_wrapped(window.data[begin : end or None])
    if end and window.data[end:].strip(BLANKS) == b"" and not window.grow():
        try:
            value = parse_json(window.data[begin:end])
        except ValueError:
            value = None
        rows = find_rows(value) if isinstance(value, dict) else None
        if rows is not None:
            yield from _number(rows, window)
            return
    elif not end and place is None and not window.ended:
        rows = _load_columns(window, reader.name)
        yield from reader.read_rest() if rows is None else _number(rows, window)
        return
    elif end or (window.ended and place is not None and _holds_more(window.data[begin + place :])):
        place = None  # more follows: each object is a row
    if place is None:
        yield from reader.read_rest()
    else:
        window.move(window.place + place)
        yield from reader.read_list()
        yield from reader.read_around()


def _find_first(window: JsonWindow, limit_bytes: int) -> tuple[int, int]:
    """Return where the first value begins and ends in the data; the end is 0 when it is not within `limit_bytes`."""
    while True:
        first = next(find_values(window.data, window.place), None)
        if isinstance(first, tuple):
            return first
        if first is not None or window.held_bytes > limit_bytes or not window.grow():
            return window.place, 0


def _holds_more(data: bytes) -> bool:
    """Return whether the list in which `data` begins ends, and objects follow: of a whole that has no end itself."""
    last = -1
    for value in find_values(data):
        last = value if isinstance(value, int) else -1
    return last >= 0 and b"{" in data[last:]


def _load_columns(window: JsonWindow, name: str) -> list[dict] | None:
    """Return the rows of a large object of columns; None when it is something else. Raises StudioError."""
    begin, end = _find_first(window, COLUMNS_BYTES)
    if not end and not window.ended:
        raise refuse_file(name, "json_large", megabytes=COLUMNS_BYTES >> 20)
    try:
        return find_rows(parse_json(window.data[begin:end])) if end else None
    except ValueError:
        return None


def _number(rows: list[dict], window: JsonWindow) -> Iterator[Row]:
    for row, values in enumerate(rows, start=1):
        if isinstance(values, dict):
            yield Row(window.line, values, None, row, window.offset)
        else:
            why = "other_list" if isinstance(values, list) else "not_object"
            told = text(f"data.row.{why}")
            yield broken_row(window.line, RowCode.UNREADABLE, told, row=row, offset=window.offset)


def _find_wrapped(data: bytes) -> int | None:
    """Return the place behind the [ of the first list of objects that is a value of the object `data`.

    None when there is none, or when one of its lists holds the turns of a conversation: the object is a row then.
    """
    found = None
    for place in find_list(data):
        following = data[place : place + 64].lstrip(BLANKS)
        if not following.startswith(b"{"):
            continue
        span = next(find_values(data[place : place + LEAST_BYTES]), None)
        if isinstance(span, tuple):
            try:
                first = parse_json(data[place + span[0] : place + span[1]])
            except ValueError:
                first = {}
            if isinstance(first, dict) and (TURN_KEYS & first.keys() or VERSION_KEYS <= first.keys()):
                return None
        found = place if found is None else found
    return found


class _Reader:
    """Reads objects that follow one another, with or without commas between them."""

    def __init__(self, window: JsonWindow, name: str) -> None:
        self.window, self.name = window, name
        self.row = 0
        self._key = b""  # with which rows begin
        self._gap: bytes | None = None  # what stands between rows
        self._cut_short = False  # the last row has no end
        self._failed = self._unclosed = self._searched_bytes = 0

    def read_list(self) -> Iterator[Row]:
        """Yield the rows up to the closing bracket of the list in which the window stands."""
        yield from self.read_values()
        if self.window.peek() == b"]":
            self.window.move(self.window.place + 1)
        elif not self._cut_short:
            yield self._break(self.window.place, "list_open")

    def read_rest(self) -> Iterator[Row]:
        """Yield the rows up to the end of the file; brackets that close nothing are broken rows."""
        yield from self.read_values()
        while self.window.peek():
            self._count_unclosed(0)
            begin = self.window.place
            yield self._break(max(CLOSERS.match(self.window.data, begin).end(), begin + 1), "not_object")
            yield from self.read_values()

    def read_around(self) -> Iterator[Row]:
        """Pass what stands behind the list of rows in the object that holds it; yield the rows behind that object."""
        window = self.window
        while True:
            value = next(find_values(window.data, window.place), None)
            if isinstance(value, int):
                window.move(value + 1)
                break
            if value is None:
                if window.held_bytes > LEAST_BYTES or not window.grow():
                    begin = window.data.find(b"[", window.place)
                    if begin >= 0 and OBJECTS.match(window.data, begin):
                        yield self._break(len(window.data), "other_list")
                    return
                continue
            begin, end = value
            if OBJECTS.match(window.data, begin):
                yield self._break(end, "other_list")  # rows that would vanish without a word
                continue
            if not window.data[window.place : begin].rstrip().endswith(b":"):  # no value of a key, but a row
                yield self._break(begin, "not_closed")
                break
            window.move(end)
        yield from self.read_rest()

    def read_values(self) -> Iterator[Row]:
        """Yield the rows up to a bracket that closes more than they opened, or to the end."""
        window = self.window
        while True:
            limit_bytes = max(ROW_BYTES >> min(self._unclosed, 8), LEAST_BYTES)
            for value in find_values(window.data, window.place, limit_bytes):
                if isinstance(value, int):
                    yield from self._read_between(value)
                    if not (self._failed and GOES_ON.match(window.data, value)):
                        return
                    window.move(value + 1)  # it belongs to a value that was broken
                    break
                begin, end = value
                yield from self._read_between(begin)
                row = self._read(begin, end)
                following = self._find_swallowed(row, begin, end) if row.problem else 0
                if following:
                    yield self._break(following, "not_closed")
                    break
                self.row += 1
                yield row
                window.move(end)
            else:
                if window.held_bytes <= limit_bytes and window.grow():
                    continue
                if not (yield from self._pass_unclosed(limit_bytes)):
                    return

    def _read(self, begin: int, end: int) -> Row:
        """Return the row that lies in the window's data from `begin`, where the window stands, to `end`."""
        window = self.window
        data = window.data[begin:end]
        row = read_object(data, window.line, self.row + 1, window.offset, window.get_raw(begin, end))
        if row.problem is not None:
            self._failed += 1
        elif not self._key and (match := FIRST_KEY.match(data, 0, NAME_BYTES)):
            self._key = match[1]
        return row

    def _read_between(self, end: int) -> Iterator[Row]:
        """Go on to `end`; what stands there besides blanks and commas are values that are no objects."""
        window, begin = self.window, self.window.place
        gap = window.data[begin:end]
        if gap.strip(b" \t\r\n,"):
            for start in range(
                begin, end, RAW_BYTES
            ):  # a longer string counts as several: neither can be used
                for match in SCALAR.finditer(window.data, start, min(start + RAW_BYTES, end)):
                    window.move(match.start())
                    yield self._break(match.end(), "not_object")
        elif self._gap is None and self.row:
            self._gap = gap
        window.move(end)

    def _break(self, end: int, reason: str, **values: object) -> Row:
        """Return the broken row from where the window stands to `end`, and go on there."""
        window = self.window
        self.row += 1
        self._failed += 1
        line, offset = window.line, window.offset
        raw = window.get_raw(window.place, min(end, window.place + RAW_BYTES)).rstrip(b" \t\r\n,")
        window.move(end)
        return broken_row(
            line,
            RowCode.UNREADABLE,
            text(f"data.row.{reason}", **values),
            row=self.row,
            offset=offset,
            raw=raw,
        )

    def _find_swallowed(self, row: Row, begin: int, end: int) -> int:
        """Return where the next row begins inside the broken `row`, which did not close in time; 0 when nowhere."""
        if row.problem.message.id != "data.row.not_json":
            return 0
        data = self.window.data
        following = self._find_following(begin, end)
        mismatched = data[begin] == OPEN and data[end - 1] != CLOSED
        if following and not mismatched:  # one that is merely nested closes more than it opens up to `end`
            values = list(find_values(data[following:end]))
            following = 0 if values and isinstance(values[-1], int) else following
        if following:
            self._count_unclosed(end - begin)
        return following

    def _find_following(self, begin: int, end: int) -> int:
        """Return where, behind `begin`, an object begins like the rows do, after what stands between rows; or 0."""
        data = self.window.data
        first = FIRST_KEY.match(data, begin, min(end, begin + NAME_BYTES))
        key = self._key or (first[1] if first else b"")
        if not key:
            return 0
        gap = self._gap if self._gap and b"\n" in self._gap else b""
        for match in re.compile(rb"\{\s*" + re.escape(key) + rb"\s*:").finditer(data, begin + 1, end):
            place = match.start()
            before = data[max(begin, place - NAME_BYTES) : place].rstrip()
            if before[-1:] not in BEFORE_NESTED and data[place - len(gap) : place] == gap:
                return place
        return 0

    def _count_unclosed(self, searched_bytes: int) -> None:
        self._unclosed += 1
        self._searched_bytes += max(searched_bytes, RAW_BYTES)
        if self._searched_bytes > SEARCHED_BYTES:
            raise refuse_file(self.name, "json_broken", line=self.window.line, column=1)

    def _pass_unclosed(self, limit_bytes: int) -> Iterator[Row]:
        """Pass a value that does not end; return whether others follow. Raises StudioError when there are too many."""
        window = self.window
        opening = next(
            (int(places[0]) for places, _, _ in scan(window.data, window.place) if len(places)), None
        )
        if opening is None:  # no object, perhaps nothing: a list of words, or a string without an end
            end = len(window.data) if window.ended else window.data.rfind(b",", window.place)
            yield from self._read_between(end if end > window.place else len(window.data))
            return not window.ended
        yield from self._read_between(opening)
        self._count_unclosed(min(window.held_bytes, limit_bytes))
        following = self._find_following(opening, len(window.data))
        if following or window.ended:
            yield self._break(following or len(window.data), "not_closed")
            self._cut_short = not following
            return following > 0
        yield self._break(len(window.data) - OVERLAP_BYTES, "too_long", megabytes=ROW_BYTES >> 20)
        while not (following := self._find_following(window.place, len(window.data))):
            window.move(max(window.place, len(window.data) - OVERLAP_BYTES))
            if not window.grow():
                window.move(len(window.data))
                return False
        window.move(following)
        return True


CONTAINER = Container(name="json", suffixes=(".json",), accepts=accept, iterate=iterate)
