"""JSON that others may have written, read in one place: whatever is wrong with it becomes one refusal.

Python's parser says RecursionError of what is nested deeply, which is no ValueError, and takes what is nested less
deeply although the code that walks through it then fails in its turn.
"""

from __future__ import annotations

import codecs
import json
import os
import stat
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, literal, text

DEEPEST = 150
"""Levels of lists and objects. Python's stack has 1,000, of which a walker in Python takes two or three a level."""
LONG_NUMBER = "integer string conversion"
"""Part of Python's own words for a whole number beyond its limit of digits."""


class TooDeep(ValueError):
    """JSON that is nested deeper than DEEPEST."""

    def __init__(self) -> None:
        super().__init__(f"nested deeper than {DEEPEST} levels")


def parse_json(words: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError for all that is wrong with it, TooDeep among that."""
    try:
        value = json.loads(words)
    except RecursionError:
        raise TooDeep from None
    brackets = ("[", "{") if isinstance(words, str) else (b"[", b"{")
    if sum(map(words.count, brackets)) > DEEPEST and _measure_depth(value) > DEEPEST:
        raise TooDeep
    return value


def read_json(path: Path, *, halves: bool = False) -> Any:
    """Return the JSON data of a file, a UTF-8 mark allowed. Raises StudioError when it is missing or not JSON.

    Something else than a file is refused, too: reading a pipe may never end. `halves` as in read_words.
    """
    try:
        if stat.S_ISFIFO(mode := os.stat(path).st_mode) or stat.S_ISCHR(mode):
            why, fix = text("data.source.special"), text("data.source.special.fix")
            raise _refuse(path.name, "file.unreadable", why, fix)
        content = path.read_bytes()
    except OSError as error:
        why = literal(error.strerror or str(error))
        raise _refuse(path.name, "file.unreadable", why, text("file.unreadable.fix")) from error
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _refuse(path.name, "file.utf16", text("file.utf16.why"), text("file.utf16.fix"))
    try:
        words = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refuse_words(path.name, error) from error
    return read_words(words, path.name, halves=halves)


def read_words(words: str, name: str | Text, *, halves: bool = False) -> Any:
    """Return the JSON data in the text of the file `name`. Raises StudioError.

    Half a character (an escape of D800 alone) could not be written again; `halves` takes it: names of files hold some.
    """
    try:
        data = parse_json(words.removeprefix("\ufeff"))
        if not halves:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        return data
    except ValueError as error:
        raise _refuse_words(name, error) from error


def _refuse_words(name: str | Text, error: ValueError) -> StudioError:
    if isinstance(error, TooDeep):
        return _refuse(name, "file.deep", text("file.deep.why", most=DEEPEST), text("file.deep.fix"))
    if LONG_NUMBER in str(error):
        return _refuse(name, "file.number", text("file.number.why"), text("file.number.fix"))
    return _refuse(name, "file.not_json", literal(str(error)), text("file.not_json.fix", path=name))


def _refuse(name: str | Text, what: str, why: Text, fix: Text) -> StudioError:
    return StudioError(text(what, path=name), why, fix)


def _measure_depth(value: Any) -> int:
    """Return how many lists and objects stand within one another, without calling itself."""
    level, depth = [value], 0
    while level := [part for part in level if isinstance(part, (list, dict))]:
        depth += 1
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
    return depth
