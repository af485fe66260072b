"""One JSON text in a file: an array of objects, an object around one list, an object of columns, or a single row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from studio.core.text import text
from studio.data.containers.container import UTF8_MARK, Container, parse_json, refuse_file
from studio.data.row import Row, broken_row


def accept(path: Path, head: bytes) -> bool:
    """Return whether the file begins like a JSON array or object."""
    return head.lstrip()[:1] in (b"[", b"{")


def iterate(path: Path) -> Iterator[Row]:
    """Yield the rows; `line` is the row's number, counted from 1. Raises StudioError when the text is broken."""
    for number, value in enumerate(_find_rows(_load(path)), start=1):
        if isinstance(value, dict):
            yield Row(line=number, values=value)
        else:
            yield broken_row(number, "E101", text("data.row.not_object"))


def _load(path: Path) -> object:
    try:
        return parse_json(path.read_bytes().removeprefix(UTF8_MARK).strip())
    except json.JSONDecodeError as error:
        raise refuse_file(path, "json_broken", line=error.lineno, column=error.colno) from error
    except UnicodeError as error:
        raise refuse_file(path, "encoding") from error
    except ValueError as error:
        raise refuse_file(path, "json_number") from error


def _find_rows(value: object) -> list:
    """Return the list of rows inside `value`: itself, its one list of objects, its columns side by side, or one row."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return [value]
    lists = [part for part in value.values() if isinstance(part, list)]
    wrapped = [part for part in lists if part and all(isinstance(item, dict) for item in part)]
    turns = [part for part in wrapped if {"role", "from"} & set(part[0])]
    if len(wrapped) == 1 and not turns:
        return wrapped[0]
    if (
        len(lists) == len(value)
        and value
        and len({len(part) for part in lists}) == 1
        and len(wrapped) < len(lists)
    ):
        return [dict(zip(value, cells, strict=True)) for cells in zip(*lists, strict=True)]
    return [value]


CONTAINER = Container(name="json", accepts=accept, iterate=iterate)
