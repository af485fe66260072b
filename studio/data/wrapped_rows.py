"""Objects that only wrap the columns of a row: their fields become the columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from studio.core.i18n import Text, text
from studio.data.formats.aliases import ANSWERS, CHOICES, INSTRUCTION, LABEL, QUESTIONS
from studio.data.formats.cells import Values, count_words, is_empty, shorten
from studio.data.formats.choices import part_options
from studio.data.formats.column_names import part_name, simplify
from studio.data.row import Row

LIFTED = ("data", "row", "example", "item", "translation", "qa", "sample", "fields", "record", "inputs", "outputs",
          "payload", "_source", "attributes", "instance", "qa_pair", "pair", "content", "body")  # fmt: skip
"""Names of objects that only wrap the columns of a row."""
SENTENCE_WORDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Lift:
    """Objects whose fields are the columns."""

    columns: tuple[str, ...]

    @property
    def consumed(self) -> tuple[str, ...]:
        """Columns that are gone in what it yields."""
        return self.columns

    @property
    def note(self) -> Text:
        """What a person should know."""
        return text("data.reshape.lift", columns=", ".join(map(shorten, self.columns)))

    def apply(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield each Row with the fields of its objects as columns, named as they are where that is free."""
        for row in rows:
            if row.problem is None:
                values = {name: cell for name, cell in row.values.items() if name not in self.columns}
                for column in self.columns:
                    cell = _open(row.values.get(column))
                    for name, value in cell.items() if isinstance(cell, Mapping) else ((column, cell),):
                        values[name if name not in values else f"{column}.{name}"] = value
                row = Row(row.line, values, None, row.row, row.offset, row.raw)
            yield row


def find_lift(columns: Sequence[str], rows: Sequence[Values]) -> Lift | None:
    """Return the columns of objects whose fields are the columns; None where there are none."""
    found = [
        name
        for name in columns
        if (simplify(name) in LIFTED or _holds_options(name, rows) or _holds_pair(name, rows))
        and _is_object(name, rows)
    ]
    found = [name for name in found if not _is_made(name, columns, rows)]
    if "inputs" not in map(simplify, found):
        found = [name for name in found if simplify(name) != "outputs"]
    asking = [name for name in columns if name not in found and _asks(name, rows)]
    if len(asking) == 1 and not found:
        # What a labelling service was given, and beside it what people said of it.
        found = [name for name in columns if name in asking or _wraps_one(name, rows)]
    return Lift(columns=tuple(found)) if found else None


def find_frame(columns: Sequence[str], rows: Sequence[Values]) -> Lift | None:
    """Return the only object beside two answers that holds sentences: what they answer; None where there is none."""
    if not {"chosen", "rejected"} <= {simplify(name) for name in columns}:
        return None
    rest = [name for name in columns if simplify(name) not in ("chosen", "rejected")]
    said = [
        name
        for name in rest
        if any(isinstance(row.get(name), str) and _is_sentence(row[name]) for row in rows)
    ]
    found = [name for name in rest if _is_object(name, rows) and any(_tells(row.get(name)) for row in rows)]
    return Lift(columns=tuple(found)) if len(found) == 1 and not said else None


def _tells(cell: object) -> bool:
    """Return whether an object holds a sentence."""
    values = cell.values() if isinstance(cell, Mapping) else ()
    return any(isinstance(one, str) and _is_sentence(one) for one in values)


def _holds_pair(name: str, rows: Sequence[Values]) -> bool:
    """Return whether each cell of a column is an object with a better and a worse answer."""
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    named = [{simplify(key) for key in cell} if isinstance(cell, Mapping) else set() for cell in cells]
    return bool(cells) and all({"chosen", "rejected"} <= keys for keys in named)


def _holds_options(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds questions together with their options."""
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    return bool(cells) and all(
        isinstance(cell, Mapping)
        and any(simplify(key) in CHOICES and len(part_options(value)) > 1 for key, value in cell.items())
        and any(simplify(key) in (*QUESTIONS, "text", "body") for key in cell)
        for cell in cells
    )


def _is_made(name: str, columns: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether a column holds the facts of the only text beside it, as a program would note them: its answer."""
    texts = [
        other
        for other in columns
        if other != name
        and all(isinstance(cell := row.get(other), str) and _is_sentence(cell) for row in rows)
    ]
    facts = [row[name] for row in rows if isinstance(row.get(name), Mapping)]
    plain = all(
        not isinstance(cell, (list, tuple, Mapping)) and not (isinstance(cell, str) and _is_sentence(cell))
        for one in facts
        for cell in one.values()
    )
    told = any({*part_name(key)} & {*ANSWERS, *LABEL} for one in facts for key in one)
    return len(texts) == 1 and plain and not told and bool(facts) and all(len(one) > 1 for one in facts)


def _is_sentence(words: str) -> bool:
    return count_words(words) >= SENTENCE_WORDS


def _open(cell: object) -> object:
    """Return the object that a list holds alone, and that an object holds alone; any other cell as it is."""
    opened = cell[0] if isinstance(cell, (list, tuple)) and len(cell) == 1 else cell
    if isinstance(opened, Mapping) and len(opened) == 1 and isinstance(next(iter(opened.values())), Mapping):
        opened = next(iter(opened.values()))
    return opened if isinstance(opened, Mapping) else cell


def _asks(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are objects that hold a question or a task, and several answers to it."""
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    return bool(cells) and all(
        isinstance(cell, Mapping)
        and any(simplify(key) in ("prompt", *QUESTIONS, *INSTRUCTION) for key in cell)
        and sum(bool({*part_name(key)} & {*ANSWERS}) for key in cell) > 1
        for cell in cells
    )


def _wraps_one(name: str, rows: Sequence[Values]) -> bool:
    """Return whether each cell of a column is a list of one object, which holds one object or a few plain values."""
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    return bool(cells) and all(
        isinstance(cell, (list, tuple))
        and isinstance(opened := _open(cell), Mapping)
        and "role" not in opened
        for cell in cells
    )


def _is_object(name: str, rows: Sequence[Values]) -> bool:
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    return bool(cells) and all(
        isinstance(cell, Mapping)
        and "role" not in cell
        and any(not is_empty(value) for value in cell.values())
        for cell in cells
    )
