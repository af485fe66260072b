"""Plain text: one document a row; every token is learned."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.conversation import Conversation
from studio.data.formats.format import Format, Mapped, Values, is_written, read_cell, share


def prove(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return the share of rows with text; less where the text only repeats the other columns joined together."""
    column = mapping["text"]

    def holds(row: Values) -> bool:
        return isinstance(row.get(column), str)

    def repeats(row: Values) -> bool:
        others = [cell for name, cell in row.items() if name != column and is_written(cell)]
        return holds(row) and len(others) > 1 and all(cell.strip() in row[column] for cell in others)

    return share(sample, holds) - (share(sample, repeats) > 0.5)


def read(values: Values, mapping: Mapped) -> Conversation:
    """The cell as it is."""
    return Conversation(text=read_cell(values, mapping["text"]), kind="text")


FORMAT = Format(
    name="text",
    roles={"text": ("text", "content", "document", "body")},
    required=("text",),
    prove=prove,
    read=read,
)
