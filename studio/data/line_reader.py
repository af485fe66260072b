"""The lines of a stream with their numbers and bytes, in bounded memory whatever the stream holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import BinaryIO

from studio.data.charset import skip_mark

CHUNK_BYTES = 2**20
LINE_BYTES = 64 * 2**20
"""Longest line that is kept whole: with its values it must fit into memory some four times."""
KEPT_BYTES = 2**20
"""So much is kept of a line beyond the limit."""
SEARCH_BYTES = 16 * 2**20
"""A file is taken to end its lines with CR alone when this much of it holds CR and no LF."""

Line = tuple[int, int, bytes, bool]
"""(number from 1, byte of the stream where it begins, its bytes without LF, whether they are all of it).

The CR of CR LF belongs to the bytes. In UTF-16 the bytes are those of the file, two or four a character.
"""


class LineReader:
    """Iterates over the Lines of `stream`, read in chunks.

    Lines end with LF or CR LF; with CR alone only where the file has no LF. Form feeds, U+0085 and U+2028 are text.
    A byte order mark at the start of the file is no part of the first line. The last line may lack its end.
    """

    def __init__(
        self,
        stream: BinaryIO,
        encoding: str = "utf-8",
        *,
        number: int = 1,
        offset: int = 0,
        limit_bytes: int = LINE_BYTES,
    ) -> None:
        """number, offset: of the line at which `stream` stands, when that is not the first of the file."""
        self.encoding = encoding
        """Without a mark: utf-8 for utf-8-sig, utf-16-le or utf-16-be for utf-16."""
        if not offset:
            stream, self.encoding, offset = skip_mark(stream, encoding)
        self._width = 2 if self.encoding.startswith("utf-16") else 1
        self._stream, self._number, self._offset, self._limit_bytes = stream, number, offset, limit_bytes
        start = self._read()
        newline = "\n"
        while start and not self._has(start, "\n") and self._has(start, "\r") and len(start) < SEARCH_BYTES:
            more = self._read()
            start += more
            if not more:
                break
        if self._has(start, "\r") and not self._has(start, "\n"):
            newline = "\r"
        self._start = start
        self.newline = newline.encode(self.encoding) if self._width == 2 else newline.encode("ascii")
        """The end of a line: LF or CR, of two bytes in UTF-16."""

    def __iter__(self) -> Iterator[Line]:
        number, offset, limit_bytes, width = self._number, self._offset, self._limit_bytes, self._width
        split = self._split_pairs if width == 2 else self._split_bytes
        parts: list[bytes] = []  # of a line that began in an earlier chunk
        held = 0  # its bytes so far, of which `parts` keeps all up to the limit
        for chunk in itertools.chain((self._start,), iter(self._read, b"")):
            lines = split(chunk)
            last = lines.pop()
            for line in lines:
                if held or len(line) > limit_bytes:
                    held += len(line)
                    kept = _keep(parts, line, held, limit_bytes)
                    yield number, offset, b"".join(kept), held <= limit_bytes
                    offset += held + width
                    parts, held = [], 0
                else:
                    yield number, offset, line, True
                    offset += len(line) + width
                number += 1
            if last:
                held += len(last)
                parts = _keep(parts, last, held, limit_bytes)
        if held:
            yield number, offset, b"".join(parts), held <= limit_bytes

    def _read(self) -> bytes:
        chunk = self._stream.read(CHUNK_BYTES)
        if self._width == 2 and len(chunk) % 2:
            chunk += self._stream.read(1)
        return chunk

    def _has(self, chunk: bytes, sign: str) -> bool:
        if self._width == 1:
            return sign.encode("ascii") in chunk
        return (
            sign.encode(self.encoding) in chunk
            and len(self._find_pairs(chunk, sign.encode(self.encoding))) > 0
        )

    def _split_bytes(self, chunk: bytes) -> list[bytes]:
        return chunk.split(self.newline)

    def _split_pairs(self, chunk: bytes) -> list[bytes]:
        ends = self._find_pairs(chunk, self.newline)
        starts = [0, *(end + 2 for end in ends)]
        return [chunk[start:end] for start, end in zip(starts, [*ends, len(chunk)], strict=True)]

    def _find_pairs(self, chunk: bytes, pair: bytes) -> list[int]:
        """Return where the two bytes `pair` are a character: at even places only."""
        import numpy

        pairs = numpy.frombuffer(chunk, dtype="<u2", count=len(chunk) // 2)
        return (numpy.flatnonzero(pairs == int.from_bytes(pair, "little")) * 2).tolist()


def _keep(parts: list[bytes], part: bytes, held: int, limit_bytes: int) -> list[bytes]:
    """Return `parts` with `part`; of a line beyond the limit only its beginning."""
    if held <= limit_bytes:
        parts.append(part)
        return parts
    if len(parts) == 1 and len(parts[0]) >= KEPT_BYTES:
        return [parts[0][:KEPT_BYTES]]
    return [b"".join([*parts, part[:KEPT_BYTES]])[:KEPT_BYTES]]
