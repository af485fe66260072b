"""A window that moves over one long JSON text and finds the values at its uppermost level without parsing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from studio.data.charset import from_utf8, open_utf8, skip_mark

CHUNK_BYTES = 4 * 2**20
MOST_BYTES = 16 * 2**20
"""So much is read at once while a long value is not complete."""
BLOCK_BYTES = 2**20
FIRST_BLOCK_BYTES = 2**16
"""Blocks double from here, so that looking again a little further on costs little."""
BLANKS = b" \t\r\n"
QUOTE = ord('"')

Span = tuple[int, int]
"""(begin, end) of a value in the window's data."""


class JsonWindow:
    """Part of a stream in UTF-8, from `place` on; what lies before is forgotten when more is read."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        stream, self._encoding, self.offset = skip_mark(stream, encoding)
        self._stream = open_utf8(stream, self._encoding)
        self.data = b""
        self.place = 0
        """Where the next value may begin."""
        self.line = 1
        """Of the file at `place`, like `offset`, its byte."""
        self.ended = False
        self.grow()
        self._newline = b"\r" if b"\r" in self.data and b"\n" not in self.data else b"\n"

    @property
    def held_bytes(self) -> int:
        """How much lies behind `place`."""
        return len(self.data) - self.place

    def grow(self) -> bool:
        """Read on; return whether there was more."""
        chunk = self._stream.read(min(max(CHUNK_BYTES, self.held_bytes), MOST_BYTES))
        self.ended = not chunk
        if chunk:
            self.data = self.data[self.place :] + chunk
            self.place = 0
        return bool(chunk)

    def move(self, place: int) -> None:
        """Go on to `place`, counting lines and bytes on the way."""
        self.line += self.data.count(self._newline, self.place, place)
        self.offset += (
            len(self.get_raw(self.place, place)) if self._encoding != "utf-8" else place - self.place
        )
        self.place = place

    def get_raw(self, begin: int, end: int) -> bytes:
        """Return the data from `begin` to `end` as it stands in the file."""
        return from_utf8(self.data[begin:end], self._encoding)

    def peek(self, skipped: bytes = BLANKS) -> bytes:
        """Go on to the next byte that is none of `skipped` and return it; b"" at the end."""
        while True:
            rest = self.data[self.place : self.place + BLOCK_BYTES]
            blanks = len(rest) - len(rest.lstrip(skipped))
            self.move(self.place + blanks)
            if blanks < len(rest):
                return self.data[self.place : self.place + 1]
            if self.place == len(self.data) and not self.grow():
                return b""


def find_values(data: bytes, place: int = 0, limit_bytes: int = 2**62) -> Iterator[Span | int]:
    """Yield the Span of each complete object or array from `place` on, nested ones aside.

    An int comes last where a bracket closes that was not opened behind `place`: its position. What is not complete
    within some `limit_bytes` ends the search.
    """
    done = place
    begin = -1
    for positions, steps, depths in scan(data, place):
        turning = ((steps > 0) & (depths == 1)) | ((steps < 0) & (depths == 0))
        closing = depths < 0
        stop = int(closing.argmax()) if closing.any() else len(positions)
        turning[stop:] = False
        for position, step in zip(positions[turning].tolist(), steps[turning].tolist(), strict=True):
            if step > 0:
                begin = position
            else:
                done = position + 1
                yield begin, done
        if len(positions) and positions[-1] - done > limit_bytes:
            return
        if stop < len(positions):
            yield int(positions[stop])
            return


def find_list(data: bytes) -> Iterator[int]:
    """Yield the position behind each [ that is the value of a key of the object with which `data` begins."""
    for positions, steps, depths in scan(data, 0):
        for position in positions[(steps > 0) & (depths == 2)].tolist():
            if data[position : position + 1] == b"[":
                yield position + 1


def scan(data: bytes, place: int) -> Iterator[tuple]:
    """Yield (positions int64 [n], steps int8 [n], depths int64 [n]) of the brackets outside of strings, in blocks.

    step: +1 opens, -1 closes; depth: of the level behind the bracket, 0 at `place`.
    """
    import numpy

    steps_of = numpy.zeros(256, dtype=numpy.int8)
    steps_of[list(b"{[")], steps_of[list(b"}]")] = 1, -1
    marks = steps_of != 0
    marks[QUOTE] = True
    quotes_before = depth = 0
    block_bytes = FIRST_BLOCK_BYTES
    while place < len(data):
        block = data[place : place + block_bytes]
        block_bytes = min(2 * block_bytes, BLOCK_BYTES)
        if (len(block) - len(block.rstrip(b"\\"))) % 2:  # what the last backslash belongs to
            block += data[place + len(block) : place + len(block) + 1]
        if b"\\" in block:  # from left to right, so that what is left of a backslash is its own pair
            block = block.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        codes = numpy.frombuffer(block, dtype=numpy.uint8)
        found = numpy.flatnonzero(marks[codes])
        if len(found):
            signs = codes[found]
            quotes = numpy.cumsum(signs == QUOTE) + quotes_before
            steps = steps_of[signs]
            steps[quotes % 2 == 1] = 0
            depths = numpy.cumsum(steps, dtype=numpy.int64) + depth
            kept = steps != 0
            yield found[kept] + place, steps[kept], depths[kept]
            quotes_before, depth = int(quotes[-1]), int(depths[-1])
        place += len(block)
