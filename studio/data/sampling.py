"""The first rows of a data set, and some of its middle and end, without reading what lies between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from io import BytesIO

from studio.data.charset import ENCODINGS
from studio.data.containers.json_lines import read_lines
from studio.data.data_file import DataFile, refusing
from studio.data.line_reader import LineReader
from studio.data.row import Row

SAMPLE_ROWS = 1000
SAMPLE_BYTES = 8 * 2**20
PLACES = 32
PLACE_BYTES = 2**17
"""A sample of a file's middle is read from so many places, so much at each: random access is slow on some disks."""
ONE_BYTE_NEWLINES = tuple(name for name in ENCODINGS if not name.startswith("utf-16"))
"""Encodings in which a newline is one byte that is part of nothing else."""


def sample_head(files: Sequence[DataFile]) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Return the head of `files`, and where its last row of each begins."""
    sample: list[Row] = []
    offsets: list[int] = []
    size = 0
    for file in files:
        offsets.append(0)
        rows = file.rows()
        for row in rows:
            sample.append(row)
            offsets[-1] = row.offset
            size += len(row.raw) or len(str(row.values))
            if len(sample) >= SAMPLE_ROWS or size >= SAMPLE_BYTES:
                rows.close()
                return tuple(sample), tuple(offsets)
    return tuple(sample), tuple(offsets)


def sample_middle(files: Sequence[tuple[DataFile, int]], rows: int) -> tuple[Row, ...]:
    """Return up to `rows` sound rows behind the byte given with each file: half of them at random, half from the end.

    Their `line` and `row` are 0. Only jsonl files that are not packed can be entered anywhere; the same files give
    the same rows.
    """
    spans = [(file, start) for file, start in files if _can_seek(file) and start < file.size_bytes]
    if not spans or rows <= 0:
        return ()
    found: dict[tuple[int, int], Row] = {}
    sizes = [file.size_bytes - start for file, start in spans]
    chance = random.Random(sum(sizes))
    each = max(1, rows // 2 // PLACES)
    for _ in range(PLACES):
        number = chance.choices(range(len(spans)), weights=sizes)[0]
        file, start = spans[number]
        place = chance.randrange(start, file.size_bytes)
        found |= {(number, row.offset): row for row in _read_place(file, place)[:each]}
    file, start = spans[-1]
    tail = _read_place(file, max(start, file.size_bytes - SAMPLE_BYTES // 2), SAMPLE_BYTES // 2)
    found |= {(len(spans) - 1, row.offset): row for row in tail[-(rows - rows // 2) :]}
    return tuple(found[place] for place in sorted(found))


def _can_seek(file: DataFile) -> bool:
    plain = file.container == "jsonl" and not file.packing and not file.reshapes
    return plain and file.encoding in ONE_BYTE_NEWLINES


def _read_place(file: DataFile, place: int, size_bytes: int = PLACE_BYTES) -> list[Row]:
    """Return the sound rows that begin and end within `size_bytes` behind the first newline from `place` on."""
    with refusing(file.path), file.path.open("rb") as stream:
        stream.seek(max(0, place - 1))
        block = stream.read(size_bytes)
        whole = stream.tell() >= file.size_bytes
    start = 0 if place == 0 else block.find(b"\n") + 1
    end = len(block) if whole else block.rfind(b"\n") + 1
    if (place and not start) or end <= start:
        return []
    reader = LineReader(BytesIO(block[start:end]), file.encoding, offset=max(0, place - 1) + start)
    rows = [row for row in read_lines(reader) if row.problem is None]
    for row in rows:
        row.line = row.row = 0
    return rows
