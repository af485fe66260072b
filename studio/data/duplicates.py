"""Rows that stand in a data set more than once, and rows for training that also stand among those for evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xxhash import xxh3_128

from studio.core.atomic_files import replace_file
from studio.core.i18n import Text, text
from studio.data.conversation import Conversation
from studio.data.near_duplicates import (
    BAND_HASHES,
    BANDS,
    NEAR_CHARACTERS,
    NEAR_ROWS,
    SHINGLE_WORDS,
    THRESHOLD,
    Sketches,
    count_clusters,
    find_near,
    sketch,
)
from studio.data.row_stats import RowTraits, read_talk

Rows = Callable[[], Iterable[tuple[int, Conversation]]]
FOUND = 1
"""Changes whenever other near duplicates are found in the same rows."""
NOTHING = np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Repeats:
    """Rows that say what an earlier row says; the first of each stays."""

    exact: np.ndarray
    """int64 [found, 2]: (row, the first row that is the same but for case and white space), sorted by row."""
    near: np.ndarray | None
    """int64 [found, 2]: (row, an earlier row that it nearly repeats), none of `exact`; None: not looked for."""
    clusters: int = 0
    """Groups that the near ones form."""
    reason: Text | None = None
    """Why near ones were not looked for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Overlap:
    """Rows for training that are also rows for evaluation."""

    exact: np.ndarray
    """int64 [found, 2]: (row for training, row for evaluation), sorted; each row for training at most once."""
    near: np.ndarray | None
    """The same for rows that nearly repeat one, without those of `exact`; None: not looked for."""


def near_refusal(*traits: RowTraits) -> Text | None:
    """Return why near duplicates are not looked for unasked: too many rows or characters; None where they are."""
    rows = sum(len(each) for each in traits)
    characters = sum(int(each.characters.sum()) for each in traits)
    if rows <= NEAR_ROWS and characters <= NEAR_CHARACTERS:
        return None
    return text("data.near.many", rows=rows, limit=NEAR_ROWS)


def find_repeats(
    traits: RowTraits,
    read: Rows | None,
    *,
    rows: np.ndarray | None = None,
    reason: Text | None = None,
    cache: Path | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> Repeats:
    """Return the Repeats among `rows` (sorted int64; None: all); near ones only where `read` is given.

    cache: folder in which what was found is kept for the next time; `on_rows` hears how many rows were read.
    """
    rows = np.arange(len(traits)) if rows is None else rows
    exact = rows[find_first(traits.hashes[rows])]
    if read is None:
        return Repeats(exact=exact, near=None, reason=reason)
    # Only the first of each kind is compared: a thousand copies of one row are no thousand near duplicates.
    rest = np.setdiff1d(rows, exact[:, 0], assume_unique=True)
    hashes = traits.hashes[rest]
    near = rest[_find_once(cache, hashes, None, lambda: sketch(_read_talks(read, rest), on_rows))]
    return Repeats(exact=exact, near=near, clusters=count_clusters(near))


def find_overlap(
    train: RowTraits,
    evaluation: RowTraits,
    read: tuple[Rows, Rows] | None,
    *,
    rows: np.ndarray | None = None,
    cache: Path | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> Overlap:
    """Return the Overlap of `rows` (sorted int64; None: all) of `train` with all rows of `evaluation`.

    read: how the rows of both are read; None: near ones are not looked for. cache, on_rows: as in `find_repeats`.
    """
    rows = np.arange(len(train)) if rows is None else rows
    known, first = np.unique(evaluation.hashes, return_index=True)
    hashes = train.hashes[rows]
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    shared = known[place] == hashes if len(known) else np.zeros(len(rows), dtype=bool)
    exact = np.stack([rows[shared], first[place[shared]]], axis=1)
    if read is None:
        return Overlap(exact=exact, near=None)
    rest = rows[~shared]
    evaluated = np.sort(first)

    def talks() -> Iterator[str]:
        yield from _read_talks(read[1], evaluated)
        yield from _read_talks(read[0], rest)

    compared = np.concatenate([evaluation.hashes[evaluated], train.hashes[rest]])
    found = _find_once(cache, compared, len(evaluated), lambda: sketch(talks(), on_rows))
    near = np.stack([rest[found[:, 0] - len(evaluated)], evaluated[found[:, 1]]], axis=1)
    return Overlap(exact=exact, near=near)


def find_first(hashes: np.ndarray) -> np.ndarray:
    """Return int64 [found, 2]: (place, the first place with the same hash), for each but the first, sorted."""
    if not len(hashes):
        return NOTHING
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    firsts = first[which]
    later = np.flatnonzero(firsts != np.arange(len(hashes)))
    return np.stack([later, firsts[later]], axis=1)


def _find_once(
    cache: Path | None, hashes: np.ndarray, first: int | None, make: Callable[[], Sketches]
) -> np.ndarray:
    """Return find_near(make(), first); from `cache` where the rows with these hashes were compared before."""
    if cache is None:
        return find_near(make(), first)
    digest = xxh3_128(f"{FOUND} {first} {THRESHOLD} {SHINGLE_WORDS} {BANDS} {BAND_HASHES}".encode())
    digest.update(np.ascontiguousarray(hashes, dtype=np.uint64))
    path = cache / f"near-{digest.hexdigest()}.npy"
    if path.is_file():
        return np.load(path, allow_pickle=False)
    found = find_near(make(), first)
    cache.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.save(file, found, allow_pickle=False)
    replace_file(part, path)
    return found


def _read_talks(read: Rows, rows: np.ndarray) -> Iterator[str]:
    wanted = iter(rows.tolist())
    row = next(wanted, None)
    for number, conversation in read():
        if row is None:
            return
        if number == row:
            yield read_talk(conversation)
            row = next(wanted, None)
