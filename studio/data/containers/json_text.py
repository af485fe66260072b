"""One JSON text and its value: strict and fast first, exact and patient where that refuses; and rows made of it."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import orjson

from studio.core.i18n import text
from studio.data.row import Row, broken_row
from studio.data.row_codes import RowCode

DEPTH = 240
"""Deepest nesting of a row's values; orjson writes 254 levels, and rows are written inside other objects."""
DIGITS = 19
"""Integers of fewer digits fit into 64 bits; orjson reads longer ones as floats."""
STEP = DIGITS // 2
"""Of every run of DIGITS digits at least two neighbours among each STEP-th byte are digits."""
TWO_DIGITS = re.compile(rb"[0-9]{2}")
MANY_DIGITS = re.compile(rb"[0-9]{%d}" % DIGITS)


REPR_BYTES = 2**20
"""Longer objects in Python's own notation are not read: its parser needs a hundred times their memory."""
TALK = "messages"
"""The column of a row that is a list of turns instead of an object."""
MOST_CELLS = 20
"""A longer list is no row of cells."""
TURN_KEYS = frozenset(
    ("role", "from", "speaker", "author", "sender", "human", "user", "question", "text", "utterance")
)
TALK_KEYS = frozenset(("role", "from"))
"""Keys of an object that is a turn also where it stands alone."""


class RowTooDeep(ValueError):
    """A JSON text is nested deeper than DEPTH."""


class Nul(ValueError):
    """A JSON text holds the character NUL, as it is or as an escape."""


class KeyTwice(ValueError):
    """An object has the same key twice: one of the two values would be lost without a word."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def parse_json(data: bytes) -> object:
    """Return the value of one JSON text in UTF-8.

    NaN and infinities are read, and integers of any size stay exact (orjson.dumps refuses those beyond 64 bits).
    Raises TooDeep, KeyTwice, Nul, UnicodeError (broken characters, half a surrogate pair), json.JSONDecodeError (with
    the place of the break) or ValueError (an integer beyond 4,300 digits).
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
        raise RowTooDeep
    keys = _count_keys(data)
    if keys and keys != (len(value) if isinstance(value, dict) else 0):
        _require_single_keys(data, value, keys)
    return value


def _count_keys(data: bytes) -> int:
    """Return how many keys stand in a JSON text, by their usual spellings; the words of texts may add to that."""
    return data.count(b'":') + data.count(b'" :')


def _require_single_keys(data: bytes, value: object, keys: int) -> None:
    """Raise KeyTwice when a key was lost: `keys` are more than the value has, written again with its texts."""
    try:
        if _count_keys(orjson.dumps(value)) >= keys:
            return
    except TypeError:  # a number beyond 64 bits
        pass

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, part in pairs:
            if key in found:
                raise KeyTwice(key)
            found[key] = part
        return found

    json.loads(data, object_pairs_hook=collect)


def _parse_slowly(data: bytes, too_deep: bool) -> object:
    words = data.decode("utf-8")
    if b"\0" in data:
        raise Nul
    if too_deep:
        raise RowTooDeep
    try:
        value = json.loads(words, strict=False)  # line breaks and tabs in texts, as they are
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise RowTooDeep from None
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


def is_talk(value: object) -> bool:
    """Return whether a value is a list of turns: of objects with a speaker, of pairs, or of texts."""
    if not isinstance(value, list) or not value:
        return False
    if all(isinstance(one, dict) for one in value):
        return not TURN_KEYS.isdisjoint(value[0]) and len(value) > 1
    if all(isinstance(one, str) for one in value):
        return len(value) > 1
    return all(isinstance(one, list) and is_talk(one) for one in value)


def part_cells(value: object) -> dict[str, Any] | None:
    """Return a list of a text and what was found out about it, or of unlike cells, as columns; None for other lists.

    An object behind the text keeps its names; a number behind it is its label.
    """
    if not isinstance(value, list) or not 2 <= len(value) <= MOST_CELLS or len({*map(type, value)}) < 2:
        return None
    if not any(isinstance(one, str) or (isinstance(one, list) and one) for one in value):
        return None
    text_first, rest = isinstance(value[0], str), value[1]
    if len(value) == 2 and text_first and isinstance(rest, dict) and "text" not in rest:
        return {"text": value[0], **rest}
    if len(value) == 2 and text_first and isinstance(rest, (bool, int, float)):
        return {"text": value[0], "label": rest}
    return {f"column_{place}": cell for place, cell in enumerate(value, start=1)}


def parse_object(data: bytes) -> object:
    """As parse_json; an object may be written in Python's notation, too, as `print` and `str` write it."""
    try:
        return parse_json(data)
    except json.JSONDecodeError as broken_json:
        broken = broken_json
        if not data.lstrip().startswith(b"{'") or len(data) > REPR_BYTES:
            raise
        try:
            written = orjson.dumps(ast.literal_eval(data.decode("utf-8").strip()))
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            raise broken from None
        return parse_json(written)


def read_object(data: bytes, line: int, row: int, offset: int, raw: bytes) -> Row:
    """Return the Row that the JSON text `data` (UTF-8) holds; what is no object and no talk becomes a broken row.

    line, row, offset, raw: as in RowProblem.
    """
    try:
        value = parse_object(data)
    except json.JSONDecodeError as error:
        code, message = RowCode.UNREADABLE, text("data.row.not_json", character=error.pos + 1)
    except UnicodeDecodeError:
        code, message = RowCode.BAD_CHARACTERS, text("data.row.not_utf8")
    except UnicodeError:
        code, message = RowCode.BAD_CHARACTERS, text("data.row.surrogate")
    except Nul:
        code, message = RowCode.BAD_CHARACTERS, text("data.row.nul")
    except RowTooDeep:
        code, message = RowCode.UNREADABLE, text("data.row.too_deep", levels=DEPTH)
    except KeyTwice as error:
        code, message = RowCode.KEY_TWICE, text("data.row.key_twice", key=error.key[:80])
    except ValueError:
        code, message = RowCode.UNREADABLE, text("data.row.number_too_long")
    else:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            value = value if TALK_KEYS & value[0].keys() else value[0]  # an object in a list of its own
        if isinstance(value, dict):
            return Row(line, value, None, row, offset, raw)
        if is_talk(value):
            return Row(line, {TALK: value}, None, row, offset, raw)
        if (cells := part_cells(value)) is not None:
            return Row(line, cells, None, row, offset, raw)
        code, message = RowCode.UNREADABLE, text("data.row.not_object")
    return broken_row(line, code, message, row=row, offset=offset, raw=raw)
