"""What a container is: a way in which a file holds rows; and the refusals that all of them share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from studio.core.errors import StudioError
from studio.core.text import text
from studio.data.row import Row

UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A way in which a file holds rows."""

    name: str
    accepts: Callable[[Path, bytes], bool]
    """(path, first 64 KiB of the file without a UTF-8 mark) -> whether the file is held this way."""
    iterate: Callable[[Path], Iterator[Row]]
    """Yield every row of the file, broken ones included. Raises StudioError when the file as a whole is unreadable."""


def refuse_file(path: Path, reason: str, **values: object) -> StudioError:
    """Return the StudioError for a file that cannot be read; `reason` names data.source.<reason> and its .fix."""
    return StudioError(
        text("data.source.unreadable", name=path.name),
        text(f"data.source.{reason}", **values),
        text(f"data.source.{reason}.fix", **values),
    )


def parse_json(data: bytes) -> object:
    """Return the value of one JSON text.

    orjson is strict and fast; what it refuses is tried with json, which also knows NaN and integers beyond 64 bits.
    Raises ValueError (json.JSONDecodeError with the place of the break; UnicodeError for broken characters).
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        words = data.decode("utf-8")
    try:
        value = json.loads(words)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", words, 0) from None
    return value
