"""One JSON text and its value: strict and fast first, exact and patient where that refuses; and rows made of it."""

from __future__ import annotations

import json
import re

import orjson

from studio.core.text import text
from studio.data.row import Row, broken_row

DEPTH = 240
"""Deepest nesting of a row's values; orjson writes 254 levels, and rows are written inside other objects."""
DIGITS = 19
"""Integers of fewer digits fit into 64 bits; orjson reads longer ones as floats."""
STEP = DIGITS // 2
"""Of every run of DIGITS digits at least two neighbours among each STEP-th byte are digits."""
TWO_DIGITS = re.compile(rb"[0-9]{2}")
MANY_DIGITS = re.compile(rb"[0-9]{%d}" % DIGITS)


class TooDeep(ValueError):
    """A JSON text is nested deeper than DEPTH."""


class Nul(ValueError):
    """A JSON text holds the character NUL, as it is or as an escape."""


def parse_json(data: bytes) -> object:
    """Return the value of one JSON text in UTF-8; of keys that come twice the last counts.

    NaN and infinities are read, and integers of any size stay exact (orjson.dumps refuses those beyond 64 bits).
    Raises TooDeep, Nul, UnicodeError (broken characters, half a surrogate pair), json.JSONDecodeError (with the
    place of the break) or ValueError (an integer beyond 4,300 digits).
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        value = _parse_slowly(data, "depth" in error.msg or "recursion" in error.msg)
    else:
        if TWO_DIGITS.search(data[::STEP]) and MANY_DIGITS.search(data):
            value = json.loads(data)
    if b"\\u0000" in data and _holds_nul(value):
        raise Nul
    if data.count(b"{") + data.count(b"[") > DEPTH and _measure_depth(value) > DEPTH:
        raise TooDeep
    return value


def _parse_slowly(data: bytes, too_deep: bool) -> object:
    words = data.decode("utf-8")
    if b"\0" in data:
        raise Nul
    if too_deep:
        raise TooDeep
    try:
        value = json.loads(words)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise TooDeep from None
    return value


def _measure_depth(value: object) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        level = [item for part in level for item in _list_parts(part)]
    return depth


def _holds_nul(value: object) -> bool:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str) and "\0" in part:
            return True
        waiting += _list_parts(part)
        if isinstance(part, dict):
            waiting += part.keys()
    return False


def _list_parts(value: object) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def read_object(data: bytes, line: int, row: int, offset: int, raw: bytes) -> Row:
    """Return the Row that the JSON text `data` (UTF-8) holds; what is no object becomes a broken row.

    line, row, offset, raw: as in RowProblem.
    """
    try:
        value = parse_json(data)
    except json.JSONDecodeError as error:
        code, message = "E101", text("data.row.not_json", character=error.pos + 1)
    except UnicodeDecodeError:
        code, message = "E110", text("data.row.not_utf8")
    except UnicodeError:
        code, message = "E110", text("data.row.surrogate")
    except Nul:
        code, message = "E110", text("data.row.nul")
    except TooDeep:
        code, message = "E101", text("data.row.too_deep", levels=DEPTH)
    except ValueError:
        code, message = "E101", text("data.row.number_too_long")
    else:
        if isinstance(value, dict):
            return Row(line, value, None, row, offset, raw)
        code, message = "E101", text("data.row.not_object")
    return broken_row(line, code, message, row=row, offset=offset, raw=raw)
