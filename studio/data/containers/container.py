"""What a container is: a way in which a file holds rows; and what all of them share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import BinaryIO, Literal

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.containers.json_text import parse_json
from studio.data.line_reader import LINE_BYTES
from studio.data.row import Row

__all__ = [
    "DEFAULTS",
    "HEAD_BYTES",
    "Container",
    "ROW_BYTES",
    "ReadOptions",
    "name_columns",
    "number_names",
    "parse_json",
    "refuse_file",
]

HEAD_BYTES = 2**16
"""So much of a file is looked at to see how it holds its rows."""
ROW_BYTES = LINE_BYTES
"""Longest row that is read, in bytes of its file: with its values it must fit into memory some four times."""

COLUMN_LIMIT = 16_384
"""What a sheet of Excel can have; a table of text beyond it is no table."""

Pieces = Literal["", "file", "sections", "paragraphs", "lines"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """What a person may say about how a file is to be read; everything left out is found out."""

    name: str = ""
    """Name of the file, for refusals."""
    delimiter: str = ""
    """One character between cells; "": found out."""
    header_row: int = 0
    """Line or sheet row of the column names, from 1; 0: found out; -1: there is none, columns are numbered."""
    sheet: str = ""
    """Name of a spreadsheet's sheet; "": the first with rows."""
    pieces: Pieces = ""
    """What one row of a text is; "": decided by plain.choose_pieces."""


DEFAULTS = ReadOptions()


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A way in which a file holds rows."""

    name: str
    """As it is shown: jsonl, json, yaml, csv, tsv, xlsx, parquet, arrow, tmx, captions, quiz, txt, md, imagefolder."""
    suffixes: tuple[str, ...]
    """Endings of its files in lower case, with their dot."""
    accepts: Callable[[bytes, str], bool]
    """(head, suffix) -> whether the file is held this way.

    head: at most HEAD_BYTES of the file's beginning after unpacking; in text containers as UTF-8 without a mark
    (charset.read_head). suffix: the ending of its name in lower case, without .gz or .zst.
    """
    iterate: Callable[[BinaryIO, str, ReadOptions], Iterator[Row]]
    """(stream at its start, encoding, options) -> every row, broken ones included, in bounded memory.

    encoding: one of charset.ENCODINGS, "" in binary containers.
    Raises StudioError when the file as a whole is unreadable; OSError as it comes.
    """
    binary: bool = False
    """No text: it has no encoding, and its stream must be able to seek."""


def refuse_file(name: str | PurePath, reason: str, **values: object) -> StudioError:
    """Return the StudioError for a file that cannot be read; `reason` names data.source.<reason> and its .fix."""
    return StudioError(
        text("data.source.unreadable", name=(PurePath(name).name or str(name))[:80]),
        text(f"data.source.{reason}", **values),
        text(f"data.source.{reason}.fix", **values),
    )


def name_columns(cells: Sequence[str], name: str = "") -> tuple[str, ...]:
    """Return the column names in the header `cells`: trimmed; one without a name is column_<place>, from 1.

    Tables written by pandas have such a column. Of columns with the same name each gets a number, as exports of
    trackers have several comments: which of them holds the answers is then asked.
    """
    if len(cells) > COLUMN_LIMIT:
        raise refuse_file(name, "columns", limit=COLUMN_LIMIT)
    names = tuple(cell.strip() or f"column_{place}" for place, cell in enumerate(cells, start=1))
    return number_names(names, name)


def number_names(names: Sequence[str], file: str = "") -> tuple[str, ...]:
    """Return `names` with a number behind each that occurs several times. Raises StudioError where that is no help."""
    count, seen = Counter(names), Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} {seen[name]}" if count[name] > 1 else name)
    if len({*numbered}) < len(numbered):
        raise refuse_file(file, "header", columns=[name for name in count if count[name] > 1][:5])
    return tuple(numbered)
