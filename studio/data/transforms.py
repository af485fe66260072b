"""Which rows are learned from, and how often: rules that a person chose, each counted by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation
from studio.data.duplicates import find_overlap, find_repeats
from studio.data.filters import read_filters
from studio.data.row_stats import RowTraits, join_traits

RULES = ("overlap", "near_overlap", "duplicate", "near_duplicate", "mix_share", "not_taken")
"""Names under which rows are counted beside those of filters.FILTERS; texts data.rule.NAME."""
EVALUATION = ("validation", "test")


class Table(Protocol):
    """Converted rows by split, as studio.data.convert.Converted has them."""

    splits: Mapping[str, object]

    def traits(self, split: str = "train") -> RowTraits:
        """What is cheaply known of every row."""

    def iterate(self, split: str = "train") -> Iterable[tuple[int, Conversation]]:
        """Yield (row, Conversation) of all rows in order."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Selection:
    """The rows that stay, in the order of learning."""

    rows: np.ndarray
    """int64: numbers of the rows, each once."""
    filtered: Mapping[str, int]
    """Rule -> rows that it left out, in the order of application; the rows and these make up all rows."""
    copies: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64, as `rows`: how often each is learned from in an epoch; 1 but for a source with a weight above 1."""


def apply(
    table: Table,
    spec: DatasetSpec,
    split: str = "train",
    *,
    seed: int = 42,
    evaluation: Sequence[tuple[Table, str]] = (),
    weight: float = 1.0,
    cache: Path | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> Selection:
    """Return what the rules of `spec` leave of one split of `table`, in this order: filters, overlap with rows for
    evaluation, duplicates, share in a mix, shuffle, take.

    evaluation: (source, split) that are evaluated on, too; the other splits of `table` count in any case. weight: of
    this source in a mix. cache: folder in which near duplicates are kept for the next time.
    Rows for evaluation pass through the filters only. `on_rows` hears how many rows were compared, and may raise to
    stop. Raises StudioError for a filter that cannot be.
    """
    traits = table.traits(split)
    left = _Remaining(traits)
    _apply_filters(left, table, spec, split)
    if split == "train":
        if spec.overlap != "keep":
            _leave_overlap(left, table, evaluation, spec.overlap == "near", cache, on_rows)
        if spec.duplicates != "keep":
            near = spec.duplicates == "near"
            read = table.iterate if near else None
            repeats = find_repeats(traits, read, rows=left.rows, cache=cache, on_rows=on_rows)
            left.leave("duplicate", repeats.exact[:, 0])
            if near:
                left.leave("near_duplicate", repeats.near[:, 0])
    copies = count_copies(traits.hashes[left.rows], weight)
    left.leave("mix_share", left.rows[copies == 0])
    copies = copies[copies > 0]
    order = np.arange(len(left.rows))
    if split == "train" and spec.shuffle:
        order = shuffle(traits.hashes[left.rows], seed)
    if split == "train" and 0 < spec.max_rows < len(order):
        left.filtered["not_taken"] = len(order) - spec.max_rows
        order = order[: spec.max_rows]
    return Selection(rows=left.rows[order], filtered=left.filtered, copies=copies[order])


def count_copies(hashes: np.ndarray, weight: float) -> np.ndarray:
    """Return int64 [rows]: how often a source's rows are learned from with `weight`: 1: every row once; 2: twice; 0.5:
    half of them, chosen by their hashes, so that order and seed change nothing."""
    whole = int(weight)
    chosen = _spread(hashes, 0) < np.uint64(int((weight - whole) * 2**64))
    return whole + chosen.astype(np.int64)


def shuffle(hashes: np.ndarray, seed: int) -> np.ndarray:
    """Return int64 [rows]: an order that depends on the rows and on `seed`, but not on how they stood before.

    Rows with equal hashes are spread by how many of them came before.
    """
    if not len(hashes):
        return np.zeros(0, np.int64)
    order = np.argsort(hashes, kind="stable")
    begins = np.append(True, hashes[order][1:] != hashes[order][:-1])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    number = np.empty(len(order), dtype=np.uint64)
    number[order] = np.arange(len(order)) - first
    return np.lexsort((number, hashes, _spread(hashes + _spread(number, seed), seed)))


class _Remaining:
    """The rows that no rule has left out so far."""

    def __init__(self, traits: RowTraits) -> None:
        self.rows = np.arange(len(traits), dtype=np.int64)
        self.filtered: dict[str, int] = {}

    def leave(self, rule: str, rows: np.ndarray) -> None:
        """Leave `rows` out and count them."""
        before = len(self.rows)
        self.rows = np.setdiff1d(self.rows, rows, assume_unique=True)
        if before > len(self.rows):
            self.filtered[rule] = before - len(self.rows)


def _apply_filters(left: _Remaining, table: Table, spec: DatasetSpec, split: str) -> None:
    rules = read_filters(spec.filters)
    traits = table.traits(split)
    # Those that look at words come together, for they read all rows: once, whatever their number.
    worded = [(rule, wanted) for rule, wanted in rules if rule.keeps_row is not None]
    for rule, value in rules:
        if rule.keeps_traits is not None:
            left.leave(rule.name, np.flatnonzero(~rule.keeps_traits(traits, value)))
    if not worded:
        return
    wanted_rows = np.zeros(len(traits), dtype=bool)
    wanted_rows[left.rows] = True
    out: dict[str, list[int]] = {rule.name: [] for rule, _ in worded}
    for row, conversation in table.iterate(split):
        if wanted_rows[row]:
            for rule, wanted in worded:
                if not rule.keeps_row(conversation, wanted):
                    out[rule.name].append(row)
                    break
    for name, rows in out.items():
        left.leave(name, np.array(rows, dtype=np.int64))


def _leave_overlap(
    left: _Remaining,
    table: Table,
    evaluation: Sequence[tuple[Table, str]],
    near: bool,
    cache: Path | None,
    on_rows: Callable[[int], None] | None,
) -> None:
    places = list_evaluation(table, evaluation)
    if not places:
        return
    traits = join_traits([source.traits(split) for source, split in places])
    read = (table.iterate, lambda: read_evaluation(places)) if near else None
    found = find_overlap(table.traits(), traits, read, rows=left.rows, cache=cache, on_rows=on_rows)
    left.leave("overlap", found.exact[:, 0])
    if near:
        left.leave("near_overlap", found.near[:, 0])


def list_evaluation(table: Table, more: Sequence[tuple[Table, str]] = ()) -> list[tuple[Table, str]]:
    """Return the (source, split) whose rows are evaluated on: the other splits of `table`, and `more`."""
    return [*((table, name) for name in EVALUATION if name in table.splits), *more]


def read_evaluation(places: Iterable[tuple[Table, str]]) -> Iterator[tuple[int, Conversation]]:
    """Yield (row, Conversation) of all `places`, numbered through."""
    row = 0
    for source, split in places:
        for _, conversation in source.iterate(split):
            yield row, conversation
            row += 1


def _spread(values: np.ndarray, seed: int) -> np.ndarray:
    """Return uint64: `values` and `seed` mixed, so that the results are as if drawn at random (splitmix64)."""
    values = values.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
