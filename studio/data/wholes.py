"""Columns that hold the example as a whole: its talk written out, a text that ends with its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.data.columns import LOOKED_AT, Column, measure_columns, repeats
from studio.data.formats.cells import Values, is_address, is_blank, is_empty
from studio.data.formats.material import say_lines, say_material
from studio.data.formats.message_parsing import CONTENT_KEYS, find_turns, holds_turns
from studio.data.formats.names import part_name

PART = 0.3
"""An answer with more than this share of the letters it was found in is a part of the example, and no finding of it."""
END_CHARACTERS = 60
"""So far from the end of a text its last words stand."""
FEW = 3
DOCUMENT_WORDS = 50
"""More words than a message of a talk has on average."""


def writes_out(name: str, talk: str, rows: Sequence[Values]) -> bool:
    """Return whether most cells of a column hold every turn of the column `talk`: the talk, written out."""
    seen = whole = 0
    for row in rows[:LOOKED_AT]:
        cell, turns = row.get(name), row.get(talk)
        turns = find_turns(turns) if isinstance(turns, str) else turns
        if isinstance(cell, str) and isinstance(turns, (list, tuple)) and holds_turns(turns):
            said = [words for turn in turns for words in _say(turn)]
            seen += bool(said)
            whole += bool(said) and all(words in cell for words in said)
    return bool(seen) and 2 * whole > seen


def _say(turn: object) -> list[str]:
    if not isinstance(turn, Mapping):
        return []
    said = [turn[key] for key in CONTENT_KEYS if isinstance(turn.get(key), str)]
    return [words.strip() for words in said if not is_blank(words)]


def is_part(answer: Column, asked: Column, rows: Sequence[Values]) -> bool:
    """Return whether what would be learned stands in what would be read, and is no short finding in a long text."""
    return answer.characters >= PART * asked.characters and repeats(answer.name, [asked.name], rows)


def ends_with(asked: str, answer: str, rows: Sequence[Values]) -> bool:
    """Return whether most texts end with their answers: the text is question and answer, written together."""
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        if not is_empty(row.get(asked)) and not is_empty(row.get(answer)):
            read, said = (say_material(row[name]).strip() for name in (asked, answer))
            seen += 1
            told += bool(said) and said in read[-(len(said) + END_CHARACTERS) :]
    return seen >= FEW and told > 0.8 * seen


def is_linked(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are objects around an address, such as a picture with its caption."""
    cells = [row[one.name] for row in rows[:LOOKED_AT] if not is_empty(row.get(one.name))]
    return bool(cells) and all(isinstance(cell, Mapping) and _has_address(cell) for cell in cells)


def _has_address(cell: Mapping[str, object]) -> bool:
    values = [value for value in cell.values() if isinstance(value, str)]
    return len(values) <= FEW and any(is_address(line) for value in values for line in say_lines(value))


def are_documents(words: str, columns: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether texts are long, and have titles: an author wrote them, and nobody answers."""
    titled = any({*part_name(name)} & {"title", "headline"} for name in columns)
    return titled and measure_columns([words], rows)[words].words >= DOCUMENT_WORDS
