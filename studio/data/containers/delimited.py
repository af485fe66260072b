"""Comma, semicolon or tab separated values; every cell stays the text that it was: "007", "NA" and "1e5" included."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from studio.core.text import text
from studio.data.containers.container import UTF8_MARK, Container, refuse_file
from studio.data.row import Row, broken_row

CELL_LIMIT = 64 * 2**20
"""Characters; the csv module's own limit of 131,072 refuses long documents."""


def accept(path: Path, head: bytes) -> bool:
    """Return whether the file's name says so."""
    return path.suffix.lower() in (".csv", ".tsv")


def iterate(path: Path) -> Iterator[Row]:
    """Yield a Row a record; `line` is the line where the record begins.

    Raises StudioError when the text is not UTF-8 or the header is unusable.
    """
    csv.field_size_limit(CELL_LIMIT)
    with path.open("rb") as file:
        first = file.readline().removeprefix(UTF8_MARK)
        separator = max(b",;\t", key=first.count)
        file.seek(0)
        reader = csv.reader(_decode(file, path), delimiter=chr(separator), strict=True)
        header = _read_header(reader, path)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error:
                yield broken_row(line, "E101", text("data.row.quotes"))
                continue
            if len(cells) == len(header):
                yield Row(line=line, values=dict(zip(header, cells, strict=True)))
            elif cells:
                yield broken_row(line, "E101", text("data.row.cells", found=len(cells), expected=len(header)))


def _decode(file: BinaryIO, path: Path) -> Iterator[str]:
    for line, data in enumerate(file, start=1):
        try:
            yield data.removeprefix(UTF8_MARK).decode("utf-8") if line == 1 else data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise refuse_file(path, "encoding") from error


def _read_header(reader: Iterator[list[str]], path: Path) -> list[str]:
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise refuse_file(path, "header") from error
    if header and (len(set(header)) < len(header) or not all(header)):
        raise refuse_file(path, "header")
    return header


CONTAINER = Container(name="csv", accepts=accept, iterate=iterate)
