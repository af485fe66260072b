"""How many rows and tokens a data set has, as its head suggests: nothing is tokenised, no further byte read."""

from __future__ import annotations

from collections.abc import Sequence

from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation
from studio.data.source import Source

ASCII_CHARACTERS, OTHER_CHARACTERS = 4.0, 1.5
"""Characters of a token: 4.2 to 4.5 of English with the vocabularies of 2023 and later, 3 of code; of Chinese 1.2 to
1.7, of Russian 2 to 3."""
TURN_TOKENS = 6
"""The marks of a turn in ChatML and its like."""
UNPACKED = 4.0
"""What a compressed file grows to: 3 to 6 times for chats."""


def forecast(
    source: Source, read: int, conversations: Sequence[Conversation], spec: DatasetSpec, *, whole: bool
) -> tuple[int, int]:
    """Return (rows that can be used, their tokens once, after the cut); (0, 0) where the head tells nothing.

    read: rows of the head, of which `conversations` could be used. whole: whether the head is all there is.
    """
    if not (read and conversations):
        return 0, 0
    tokens = [count_tokens(one) for one in conversations]
    cut = [min(count, spec.max_length) if spec.too_long == "cut" else count for count in tokens]
    every = read if whole else max(read, count_rows(source))
    rows = round(every * len(conversations) / read)
    return rows, round(rows * sum(cut) / len(cut))


def count_rows(source: Source) -> int:
    """Return about how many rows there are, by how much of the files the sample takes."""
    files, rows = source.splits["train"], len(source.sample)
    size_bytes = sum(file.size_bytes * (UNPACKED if file.packing else 1.0) for file in files)
    places = sum(source.sampled_bytes)  # where the last row of each file begins: those are not counted
    if places:
        return round(size_bytes * max(1, rows - len(source.sampled_bytes)) / places)
    # Parquet, workbooks and texts tell no places: by the words of a row. Parquet is compressed in itself.
    size_bytes *= UNPACKED if source.container in ("parquet", "arrow") else 1.0
    return round(size_bytes * rows / max(1, sum(len(str(row.values)) for row in source.sample)))


def count_tokens(conversation: Conversation) -> int:
    """Return about how many tokens an example has."""
    if conversation.token_ids:
        return len(conversation.token_ids)
    words = [conversation.text, *(message.content + message.reasoning for message in conversation.messages)]
    ascii_count = sum(len(part.encode("ascii", "ignore")) for part in words)
    others = sum(map(len, words)) - ascii_count
    turns = TURN_TOKENS * len(conversation.messages)
    return max(1, round(ascii_count / ASCII_CHARACTERS + others / OTHER_CHARACTERS) + turns)
