"""JSON lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from studio.core.text import text
from studio.data.containers.container import UTF8_MARK, Container, parse_json
from studio.data.row import Row, broken_row


def accept(path: Path, head: bytes) -> bool:
    """Return whether the name says so and it is no array, or the first line holds a whole object and more follow."""
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return not head.lstrip().startswith(b"[")
    first, _, rest = head.lstrip().partition(b"\n")
    if not first.startswith(b"{") or not rest.strip():
        return False
    try:
        return isinstance(parse_json(first), dict)
    except ValueError:
        return False


def iterate(path: Path) -> Iterator[Row]:
    """Yield a Row a line; empty lines are no rows. Lines that cannot be read become broken rows."""
    with path.open("rb") as file:
        for line, data in enumerate(file, start=1):
            if line == 1:
                data = data.removeprefix(UTF8_MARK)
            data = data.strip()
            if data:
                yield _read(line, data)


def _read(line: int, data: bytes) -> Row:
    try:
        value = parse_json(data)
    except json.JSONDecodeError as error:
        return broken_row(line, "E101", text("data.row.not_json", character=error.pos + 1))
    except UnicodeError:
        return broken_row(line, "E110", text("data.row.not_utf8"))
    except ValueError:
        return broken_row(line, "E101", text("data.row.number_too_long"))
    if not isinstance(value, dict):
        return broken_row(line, "E101", text("data.row.not_object"))
    return Row(line=line, values=value)


CONTAINER = Container(name="jsonl", accepts=accept, iterate=iterate)
