"""Translation memories (.tmx): each unit is a row, with a column for each language."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO
from xml.parsers import expat

from studio.data.containers.container import Container, ReadOptions, refuse_file
from studio.data.row import Row

PIECE_BYTES = 2**16
MARKUP = frozenset(("bpt", "ept", "it", "ph", "ut", "sub"))
"""Elements of a segment that hold the codes of its formatting, and no words."""
UNIT_CHARACTERS = 2**22
"""Longer units are damaged."""


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the file's name says so."""
    return suffix == ".tmx"


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield a Row for each unit: language -> words; `line` is where it begins. The file says its encoding itself.

    Raises StudioError for a file that is no XML, or that declares entities, which could grow without bounds.
    """
    units = _Units()
    try:
        while piece := stream.read(PIECE_BYTES):
            units.feed(piece)
            yield from units.take()
        units.feed(b"", last=True)
    except (expat.ExpatError, ValueError) as error:
        raise refuse_file(options.name, "memory_broken") from error
    yield from units.take()


class _Units:
    """The units of a memory as its XML comes in."""

    def __init__(self) -> None:
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._open
        parser.EndElementHandler = self._close
        parser.CharacterDataHandler = self._say
        parser.EntityDeclHandler = self._refuse
        self._rows: list[Row] = []
        self._count = self._line = 0
        self._unit: dict[str, str] = {}
        self._language = ""
        self._words: list[str] | None = None
        self._markup = self._characters = 0

    def feed(self, piece: bytes, last: bool = False) -> None:
        """Read on. Raises ExpatError, ValueError."""
        self._parser.Parse(piece, last)

    def take(self) -> list[Row]:
        """Return the units that are complete since the last time."""
        rows, self._rows = self._rows, []
        return rows

    def _open(self, name: str, facts: dict[str, str]) -> None:
        if name == "tu":
            self._unit, self._line, self._characters = {}, self._parser.CurrentLineNumber, 0
        elif name == "tuv":
            self._language = facts.get("xml:lang") or facts.get("lang") or ""
        elif name == "seg":
            self._words = []
        elif name in MARKUP and self._words is not None:
            self._markup += 1

    def _close(self, name: str) -> None:
        if name == "tu":
            self._count += 1
            self._rows.append(Row(self._line, self._unit, None, self._count))
        elif name == "seg" and self._words is not None:
            if self._language:
                self._unit[self._language] = "".join(self._words)
            self._words, self._markup = None, 0
        elif name in MARKUP and self._markup:
            self._markup -= 1

    def _say(self, words: str) -> None:
        if self._words is not None and not self._markup:
            self._characters += len(words)
            if self._characters > UNIT_CHARACTERS:
                raise ValueError("a unit without end")
            self._words.append(words)

    def _refuse(self, *facts: object) -> None:
        raise ValueError("entities are not read")


CONTAINER = Container(name="tmx", suffixes=(".tmx",), accepts=accept, iterate=iterate, binary=True)
