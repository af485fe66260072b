"""The cells of a row: which are empty, which hold words, and what is wrong with those that do not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from studio.core.i18n import Text, text
from studio.data.row import RowError
from studio.data.row_codes import RowCode

Values = Mapping[str, object]
"""The cells of one row by column name."""
BLANKS = (
    " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\xad\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufeff"
)
"""White space and signs without width."""
BLANK = frozenset(BLANKS)
ADDRESS = re.compile(r"\s*(https?://|www\.|/|[A-Za-z]:\\|data:)\S*\s*")
CODED = re.compile(r"[\w.:/+-]*\d[\w.:/+-]*|[\d\s:.,/TZ+-]+|[^\s@]+@[^\s@]+\.\w+")
"""An id, a date, a hash, an address: one word with a digit in it, or digits alone."""
DATE = re.compile(
    r"((mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+)?((\d{1,2}(st|nd|rd|th)?\.?\s+)?"
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?,?)(\s+[\d:.,]+|\s+[A-Z]{2,4}|\s+[+-]\d{4}){1,5}",
    re.I,
)
"""A day or a time with the name of its month: `Mon Apr 06 22:19:45 PDT 2009`, `12 March 2020`."""
HASH = re.compile(r"(sha\d+:)?[0-9a-f]{32,128}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
MAIL = re.compile(r"[^\s@]+@[^\s@]+\.\w+")
CODE = re.compile(
    r"\s*(select\s.+\s(?:from|where)\s|ask\s+(?:where\s*)?\{|with\s+\w+\s+as\s*\(|insert\s+into\s|update\s+\w+\s+set\s|delete\s+from\s|"
    r"(create|alter|drop)\s+(table|view)\s|match\s*\(|prefix\s+\w*:)",
    re.I | re.S,
)
"""How queries of databases begin."""
WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of scripts that put no space between words."""
QUESTION_MARKS = ("?", "？", "؟", "՞", "፧")
WIDE_LETTERS = 5
"""So many of them make a word, or a name."""
SHOWN_CHARACTERS = 60
SHOWN_NAMES = 8


def is_asking(words: str) -> bool:
    """Return whether a text ends with a question mark, in any script."""
    return words.rstrip().endswith(QUESTION_MARKS)


def count_words(words: str) -> float:
    """Return how many words a text has; two letters of a script without spaces count as one."""
    if words.isascii():
        return len(words.split())
    return len(words.split()) + len(WIDE.findall(words)) / 2


def is_word(words: str) -> bool:
    """Return whether a text is no more than one word, in any script."""
    return len(words.split()) <= 1 and (words.isascii() or len(WIDE.findall(words)) <= WIDE_LETTERS)


def is_blank(words: str) -> bool:
    """Return whether a text says nothing: only white space and signs without width."""
    return not words or (words[0] in BLANK and not words.strip(BLANKS))


def is_empty(cell: object) -> bool:
    """Return whether a cell says nothing: null, not a number, blank, or a list or object with nothing in it."""
    if type(cell) is str:
        return is_blank(cell)
    return cell is None or cell != cell or (isinstance(cell, (list, tuple, dict)) and not cell)


def is_coded(words: str) -> bool:
    """Return whether a text says nothing in words: an id, a date, a number, an address."""
    return bool(ADDRESS.fullmatch(words) or CODED.fullmatch(words.strip()) or DATE.fullmatch(words.strip()))


def is_hash(words: str) -> bool:
    """Return whether a text is a checksum and nothing else."""
    return HASH.fullmatch(words.strip()) is not None


def is_address(words: str) -> bool:
    """Return whether a text is an address of mail, of a page, or of a file, and nothing else."""
    return bool(ADDRESS.fullmatch(words) or MAIL.fullmatch(words.strip()))


def is_handle(words: str) -> bool:
    """Return whether a text is the name by which a page calls a person: `@somebody`."""
    return words.startswith("@") and " " not in words.strip()


def is_code(cell: object) -> bool:
    """Return whether a cell is the query of a database."""
    return isinstance(cell, str) and CODE.match(cell) is not None


def holds_words(cell: object) -> bool:
    """Return whether a cell is text, or a number or truth value, which become text."""
    return isinstance(cell, (str, int, float))


def holds_text(cell: object) -> bool:
    """Return whether a cell is text."""
    return isinstance(cell, str)


def holds_setting(cell: object) -> bool:
    """Return whether a cell is text, or a turn with words: what a system prompt is."""
    return isinstance(cell, str) or _find_words(cell) is not None


def _find_words(cell: object) -> str | None:
    """Return the words of a turn that stands alone in a cell; None where it is none."""
    if not isinstance(cell, Mapping) or not ("role" in cell or "from" in cell):
        return None
    return next((cell[key] for key in ("content", "value", "text") if isinstance(cell.get(key), str)), None)


def read_cell(values: Values, column: str) -> str:
    """Return the words of a required cell; numbers and truth values as JSON writes them.

    Raises RowError: no such column, null, empty, or something without words.
    """
    cell = values.get(column)
    if type(cell) is str and cell and cell[0] not in BLANK:
        return cell
    if isinstance(cell, str):
        return require_words(cell, column)
    return say_scalar(require(values, column), column)


def read_text(values: Values, column: str) -> str:
    """Return the text of a required cell, as read_cell, but refuse numbers as well."""
    cell = values.get(column)
    if type(cell) is str and cell and cell[0] not in BLANK:
        return cell
    cell = require(values, column)
    if not isinstance(cell, str):
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.not_text", column=shorten(column), found=name_kind(cell))
        )
    return require_words(cell, column)


def read_optional(values: Values, mapping: Mapping[str, str], role: str) -> str:
    """Return the words of a cell that may be absent, null or empty ("" then). Raises RowError without words."""
    if role not in mapping:
        return ""
    cell = values.get(mapping[role])
    if is_empty(cell):
        return ""
    words = cell if isinstance(cell, str) else _find_words(cell)
    return say_scalar(cell, mapping[role]) if words is None else words


def require(values: Values, column: str) -> object:
    """Return a cell. Raises RowError when there is none, or null."""
    if column not in values:
        raise RowError(RowCode.WRONG_SHAPE, text("data.row.missing", column=shorten(column)))
    cell = values[column]
    if cell is None or cell != cell:
        raise RowError(RowCode.NULL, text("data.row.null", column=shorten(column)))
    return cell


def require_words(words: str, column: str) -> str:
    """Return `words`. Raises RowError when they are blank."""
    if is_blank(words):
        raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column)))
    return words


def say_scalar(cell: object, column: str) -> str:
    """Return a number or truth value as JSON writes it. Raises RowError for anything else."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, (int, float)):
        return repr(cell)
    if isinstance(cell, str):
        return cell
    raise RowError(
        RowCode.WRONG_SHAPE, text("data.row.not_text", column=shorten(column), found=name_kind(cell))
    )


def name_kind(cell: object) -> Text:
    """Return what a cell is, for a sentence: "a list"."""
    if cell is None:
        return text("data.kind.null")
    if isinstance(cell, bool):
        return text("data.kind.truth")
    if isinstance(cell, (int, float)):
        return text("data.kind.number")
    if isinstance(cell, str):
        return text("data.kind.text")
    if isinstance(cell, (bytes, bytearray, memoryview)):
        return text("data.kind.bytes")
    if isinstance(cell, Mapping):
        return text("data.kind.object")
    return text("data.kind.list" if isinstance(cell, Sequence) else "data.kind.other")


def shorten(name: object, characters: int = SHOWN_CHARACTERS) -> str:
    """Return a name or a value for a sentence, cut where it is long, in one line."""
    words = " ".join(str(name)[: 4 * characters].split())
    return words if len(words) <= characters else words[: characters - 1] + "…"


def show_names(names: Iterable[object], limit: int = SHOWN_NAMES) -> str:
    """Return names for a sentence, at most `limit` of them."""
    names = list(names)
    shown = ", ".join(shorten(name, 24) for name in names[:limit])
    return f"{shown} … (+{len(names) - limit})" if len(names) > limit else shown
