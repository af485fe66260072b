"""JSON lines: one object a line, or one list of turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO

from studio.core.i18n import text
from studio.data.charset import is_utf8_among, to_utf8
from studio.data.containers.container import DEFAULTS, Container, ReadOptions
from studio.data.containers.json_text import is_talk, parse_json, parse_object, read_object
from studio.data.line_reader import LINE_BYTES, LineReader
from studio.data.row import Row, broken_row
from studio.data.row_codes import RowCode

SUFFIXES = (".jsonl", ".ndjson")


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the first line holds a whole object and more follow, or the name says so and nothing else does."""
    first, _, rest = head.lstrip().partition(b"\n" if b"\n" in head else b"\r")
    first, following = first.strip(), rest.lstrip()[:1]
    if first.startswith(b"[") and following in (b"[", b"") and _is_talk(first):
        return following == b"[" or suffix in SUFFIXES
    if suffix in SUFFIXES:
        pretty = first in (b"{", b"[") or (
            first[-1:] in (b"{", b"[", b",") and following in (b'"', b"}", b"]")
        )
        pretty = pretty or (first[:1] == b"{" and first[-1:] == b"[" and following in (b"{", b"["))
        return (
            not first.startswith(b"[")
            and not pretty
            and not (first.startswith(b"{") and _spans_lines(head.lstrip()))
            and not (first.endswith(b"},") and _is_object(first[:-1]))
        )
    return first.startswith(b"{") and following != b"" and _is_object(first)


def _spans_lines(head: bytes) -> bool:
    """Return whether the first object goes on behind its first line, inside of a text, and another one follows it."""
    words = head.decode("utf-8", "ignore")
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(words)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "\n" in words[:end] and words[end:].lstrip()[:1] == "{"


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(parse_object(data), dict)
    except ValueError:
        return False


def _is_talk(data: bytes) -> bool:
    try:
        return is_talk(parse_json(data))
    except ValueError:
        return False


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions = DEFAULTS) -> Iterator[Row]:
    """Yield a Row a line; empty lines are no rows. Lines that cannot be read become broken rows."""
    return read_lines(LineReader(stream, encoding))


def read_lines(lines: LineReader, row: int = 1) -> Iterator[Row]:
    """Yield the Rows of `lines`; `row` is the number of the first. A part of a file is read by its own LineReader."""
    encoding = lines.encoding
    for number, offset, raw, whole in lines:
        data = raw
        if encoding != "utf-8":
            wrong = "mixed" if is_utf8_among(raw, encoding) else ""
            try:
                data = to_utf8(raw, encoding)
            except UnicodeDecodeError:
                wrong = "not_encoding"
            if wrong:
                message = text(f"data.row.{wrong}", encoding=encoding)
                yield broken_row(number, RowCode.BAD_CHARACTERS, message, row=row, offset=offset, raw=raw)
                row += 1
                continue
        if not whole:
            yield broken_row(
                number,
                RowCode.UNREADABLE,
                text("data.row.too_long", megabytes=LINE_BYTES >> 20),
                row=row,
                offset=offset,
                raw=raw,
            )
        elif data.isspace() or not data:
            continue
        else:
            yield read_object(data, number, row, offset, raw)
        row += 1


CONTAINER = Container(name="jsonl", suffixes=SUFFIXES, accepts=accept, iterate=iterate)
