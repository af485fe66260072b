"""Plain text: one document a row; every token is learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from studio.data.conversation import Conversation
from studio.data.formats.aliases import CHOSEN, IMAGES, LABEL, LISTS, PRODUCTS, REJECTED, TEXT
from studio.data.formats.cells import Values, count_words, holds_text, is_blank, is_empty, is_hash, read_text
from studio.data.formats.column_names import simplify
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import CONTENT_KEYS, find_turns
from studio.data.formats.notes import note_nothing
from studio.data.formats.vision import holds_images

LINE_WORDS = 2
"""An average line of a text has more words."""
MEASURED_CHARACTERS = 40
"""So many signs without a letter among them are no text."""
LOOKED_AT = 50
"""Rows in which the text is searched for what stands in the other columns."""
BESIDE = frozenset(
    {"id", "idx", "index", "source", "url", "meta", "metadata", "unnamed:_0", "lang", "language"}
)
"""Columns that do not speak against a single column of text."""
NO_TEXT = frozenset((*LISTS, *CHOSEN, *REJECTED, *LABEL, *IMAGES))
ROW_IS_TURN = frozenset({"parent_id", "role", "message_id", "turn", "speaker"})
"""Columns of files that hold one turn a row."""


def doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return 0.5 where the text only repeats the other columns joined, 0.3 where a row is one turn of a longer talk.

    0.3 also where something was made of the text: a summary, a translation, code. 0.5 where it holds no letters.
    """
    column = mapping["text"]

    def repeats(row: Values) -> bool:
        others = [words for name, cell in row.items() if name != column for words in _list_words(cell)]
        whole = 2 * sum(map(len, others)) > len(row[column])
        return len(others) > 1 and whole and all(words.strip() in row[column] for words in others)

    rows = [row for row in sample[:LOOKED_AT] if isinstance(row.get(column), str)]
    said = "".join(row[column] for row in rows if not is_blank(row[column]))
    if len(said) >= MEASURED_CHARACTERS and not any(map(str.isalpha, said)):
        return 0.5  # places, measurements, drawings
    if rows and sum(map(repeats, rows)) > len(rows) / 2:
        return 0.5
    named = {simplify(name) for name in columns}
    if any(holds_images(row.get(name)) for row in rows for name in columns if simplify(name) in IMAGES):
        return 0.5
    if any(simplify(name) in PRODUCTS and _is_said(name, sample) for name in columns if name != column):
        return 0.3
    if simplify(column) not in TEXT:
        return 0.25
    return 0.3 if named & ROW_IS_TURN else 0.0


def _is_said(name: str, sample: Sequence[Values]) -> bool:
    """Return whether most cells of a column are sentences, or code."""
    cells = [row.get(name) for row in sample[:LOOKED_AT]]
    return 2 * sum(isinstance(cell, str) and count_words(cell) > 2 for cell in cells) > len(cells)


def _list_words(cell: object) -> Iterator[str]:
    """Yield the words of a cell: its text, or those of its turns."""
    if isinstance(cell, str) and not is_blank(cell):
        turns = find_turns(cell)
        if not turns:
            yield cell
            return
    elif isinstance(cell, (list, tuple)):
        turns = cell
    else:
        return
    for turn in turns:
        if isinstance(turn, dict):
            yield from (turn[key] for key in CONTENT_KEYS if isinstance(turn.get(key), str))


def adopt(columns: Sequence[str], sample: Sequence[Values]) -> dict[str, str]:
    """Return the only column as the text, unless its name says that it is something else."""
    names = [name for name in columns if isinstance(name, str) and simplify(name) not in BESIDE]
    if (
        len(names) == 1
        and simplify(names[0]) not in NO_TEXT
        and any(
            isinstance(cell := row.get(names[0]), str) and not is_empty(cell) and not is_hash(cell)
            for row in sample
        )
    ):
        return {"text": names[0]}
    return {}


def holds_document(cell: object) -> bool:
    """Return whether a cell is a text, or a list of its lines or paragraphs; one cut into its words is none."""
    lines = isinstance(cell, (list, tuple)) and bool(cell) and all(isinstance(one, str) for one in cell)
    return holds_text(cell) or (lines and sum(map(count_words, cell)) >= LINE_WORDS * len(cell))


def read(values: Values, mapping: Mapped) -> Conversation:
    """The cell as it is; the lines of a list below each other."""
    cell = values.get(mapping["text"])
    if isinstance(cell, (list, tuple)) and holds_document(cell):
        values = {mapping["text"]: "\n".join(cell)}
    return Conversation((), read_text(values, mapping["text"]), "text")


FORMAT = Format(
    name="text",
    roles={"text": TEXT},
    required=("text",),
    kinds={"text": holds_document},
    read=read,
    beside="never",
    notes=note_nothing,
    doubt=doubt,
    adopt=adopt,
)
