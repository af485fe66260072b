"""What the sequences of an example begin with alike, as a prompt before a better and a worse answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from studio.core.row_lengths import RowLengths
from studio.data.sequence_packing import Example, measure_lengths

SAMPLED_ROWS = 1000
"""So many rows, evenly taken, stand for the mean of all: some 30 ms."""


def split_documents(example: Example) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return tokens and trained marks of each document of `example`; the first token of none is trained."""
    found, start = [], 0
    for length in example.lengths:
        trained = example.trained[start : start + length].copy()
        trained[:1] = False
        found.append((example.token_ids[start : start + length], trained))
        start += length
    return found


def count_shared(ids: Sequence[np.ndarray], trained: Sequence[np.ndarray]) -> int:
    """Return how many tokens sequences may share: alike in all, and none from which two of them predict another.

    ids, trained: of each sequence, [tokens]. Each keeps a token of its own.
    """
    if len(ids) < 2:
        return 0
    most = max(0, min(map(len, ids)) - 1)
    for other in ids[1:]:
        unlike = np.flatnonzero(ids[0][:most] != other[:most])
        most = int(unlike[0]) if len(unlike) else most
    learned = sum(one[1 : most + 1].astype(np.int64) for one in trained)
    twice = np.flatnonzero(learned > 1)
    return int(twice[0]) if len(twice) else most


def count_once(example: Example, sequences: int) -> int:
    """Return the tokens of `example` where each `sequences` of its documents have what they share once."""
    documents, saved = split_documents(example), 0
    for first in range(0, len(documents), sequences):
        part = documents[first : first + sequences]
        saved += (len(part) - 1) * count_shared(*zip(*part, strict=True))
    return len(example.token_ids) - saved


def find_longest(examples: Sequence[Example], sequences: int) -> int:
    """Return the most that count_once() says of any; reads only the examples that are long enough to have it."""
    lengths, most = measure_lengths(examples), 0
    for i in np.argsort(-lengths, kind="stable").tolist():
        if lengths[i] <= most:
            break
        most = max(most, count_once(examples[i], sequences))
    return most


def measure_rows(examples: Sequence[Example], sequences: int) -> RowLengths:
    """Return how long rows of so many sequences each are, for the plan."""
    lengths = measure_lengths(examples)
    known = {"longest_tokens": int(lengths.max()), "mean_tokens": float(lengths.mean())}
    if sequences == 1:
        return RowLengths(**known)
    taken = np.unique(np.linspace(0, len(lengths) - 1, SAMPLED_ROWS).round().astype(np.int64)).tolist()
    once = sum(count_once(examples[i], sequences) for i in taken) / max(1, int(lengths[taken].sum()))
    return RowLengths(
        **known,
        longest_shared_tokens=find_longest(examples, sequences),
        mean_shared_tokens=known["mean_tokens"] * once,
    )
