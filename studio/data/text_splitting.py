"""Texts that are longer than the limit, split where a line, a sentence or a word ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ANYWHERE, WORD, SENTENCE, LINE = range(4)
"""How good it is to part two tokens, from worst to best."""
STOPS = tuple(".!?…؟।")
"""End a sentence where white space follows: not in 3.14."""
WIDE_STOPS = tuple("。！？｡")
CLOSING = "\"'”’»)]）」』"
SPARE = 0.5
"""No piece is shorter than this share of the limit for the sake of a better place to part it."""


def rate_tokens(words: Sequence[str]) -> np.ndarray:
    """Return uint8 [vocabulary, 3]: how good it is to part a text behind each token, before it, and behind it when
    white space follows.

    words: what each token id stands for by itself, spaces included.
    """
    rates = np.zeros((len(words), 3), dtype=np.uint8)
    for i, word in enumerate(words):
        bare = word.rstrip(" \t")
        end = bare.rstrip(CLOSING)
        if bare.endswith("\n"):
            rates[i, 0] = LINE
        elif end.endswith(WIDE_STOPS):
            rates[i, 0] = SENTENCE
        elif bare != word:
            rates[i, 0] = SENTENCE if end.endswith(STOPS) else WORD
        elif end.endswith(STOPS):
            rates[i, 2] = SENTENCE
        if word[:1].isspace() and word.strip():
            rates[i, 1] = WORD
    return rates


def split_tokens(token_ids: np.ndarray, rates: np.ndarray, limit: int) -> np.ndarray:
    """Return int64 [pieces + 1]: where each piece of at most `limit` tokens begins; the last is len(token_ids).

    token_ids: int [tokens]; rates: as `rate_tokens` gives them. All tokens are kept, in order. A text is parted at the
    last best place in the second half of what fits: behind a line, a sentence, a word, else anywhere.
    """
    found = rates[token_ids]
    before = found[1:, 1]
    quality = np.maximum(np.maximum(found[:-1, 0], before), np.where(before > 0, found[:-1, 2], 0))
    edges = [0]
    while len(token_ids) - edges[-1] > limit:
        first = edges[-1] + max(int(limit * SPARE), 1)
        last = edges[-1] + limit
        # Place p of `quality` lies between the tokens p and p + 1.
        edges.append(last - int(np.argmax(quality[first - 1 : last][::-1])))
    return np.array([*edges, len(token_ids)] if len(token_ids) else [0], dtype=np.int64)


def split_rows(
    token_ids: np.ndarray, edges: np.ndarray, rows: np.ndarray, rates: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, first token, one past the last), int64 [pieces] each: `rows` as pieces of at most `limit` tokens.

    token_ids: int [tokens of all rows]; edges: int64 [rows + 1]; first and last count within the row.
    """
    parts = [split_tokens(token_ids[edges[row] : edges[row + 1]], rates, limit) for row in rows.tolist()]
    empty = np.zeros(0, dtype=np.int64)
    return (
        np.repeat(rows, [len(part) - 1 for part in parts]),
        np.concatenate([empty, *(part[:-1] for part in parts)]),
        np.concatenate([empty, *(part[1:] for part in parts)]),
    )
