"""How long the rows are, and what a length limit does to them: counted once, then answered in microseconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

HISTOGRAM_BINS = 60
LOG_FROM = 8
"""From the longest row being so many times the median on, the bins of a histogram grow by a constant factor."""
BATCH_TOKENS = 4_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSummary:
    """The distribution of one count over all rows; all 0 where there are none."""

    total: int = 0
    mean: float = 0.0
    p50: int = 0
    p95: int = 0
    max: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """How many rows are how long."""

    edges: tuple[int, ...]
    """Bin i counts lengths from edges[i] to below edges[i + 1]; one more than `counts`."""
    counts: tuple[int, ...]
    scale: str
    """`linear` or `log`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtLimit:
    """What a limit on the tokens of a row does."""

    limit: int
    rows_cut: int
    """Rows longer than the limit."""
    answers_cut: int
    """Rows of which some, but not all, that is learned lies within the limit."""
    prompts_fill: int
    """Rows of which nothing that is learned lies within the limit."""
    tokens_kept: int
    """Tokens of all rows, each up to the limit."""
    tokens_lost: int
    trained_kept: int | None
    """Learned tokens within the limit; None where the masks were not given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """What packing makes of rows cut at a limit."""

    limit: int
    rows: int
    """Full rows that they are packed into, by best fit decreasing, exactly as training packs them."""
    efficiency: float
    """Share of the places of these rows that hold a token."""


class Lengths:
    """The lengths in tokens of all rows of a data set, and where in them answers begin and end."""

    def __init__(
        self,
        full: np.ndarray,
        first_trained: np.ndarray,
        trained_end: np.ndarray,
        trained_counts: np.ndarray,
        trained_at: np.ndarray | None = None,
    ) -> None:
        """All int64 [rows], uncut: tokens; place of the first that is learned; one past the last; how many are.

        Rows of which nothing is learned have a `trained_counts` of 0. trained_at: int64 [longest]: how many rows
        learn the token at each place (`count_places`).
        """
        self.full = np.sort(full)
        self.trained_total = int(np.sum(trained_counts))
        learned = np.asarray(trained_counts) > 0
        self.answers = np.sort(np.asarray(trained_counts)[learned])
        self._first = np.sort(np.asarray(first_trained)[learned])
        self._end = np.sort(np.asarray(trained_end)[learned])
        self._before = np.concatenate([[0], np.cumsum(self.full)])
        self._trained_before = None if trained_at is None else np.concatenate([[0], np.cumsum(trained_at)])

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.full)

    @property
    def trained_share(self) -> float:
        """The share of all tokens that is learned."""
        return self.trained_total / max(int(self._before[-1]), 1)

    def at(self, limit: int) -> AtLimit:
        """Return what `limit` (tokens, from 1) does; some microseconds, whatever the number of rows."""
        short = int(np.searchsorted(self.full, limit, side="right"))
        cut = len(self.full) - short
        kept = int(self._before[short]) + cut * limit
        fill = len(self._first) - int(np.searchsorted(self._first, limit, side="left"))
        end_cut = len(self._end) - int(np.searchsorted(self._end, limit, side="right"))
        trained = self._trained_before
        return AtLimit(
            limit=limit,
            rows_cut=cut,
            answers_cut=end_cut - fill,
            prompts_fill=fill,
            tokens_kept=kept,
            tokens_lost=int(self._before[-1]) - kept,
            trained_kept=None if trained is None else int(trained[min(limit, len(trained) - 1)]),
        )

    def pad_at(self, limit: int, batch: int) -> float:
        """Return the expected share of padding where `batch` rows, drawn at random and cut at `limit`, share a step.

        Exact for draws with replacement: E[longest] is the sum over all places of 1 - P(row ends before)^batch.
        """
        if not len(self.full):
            return 0.0
        lengths, counts = _count_cut(self.full, limit)
        ended = np.cumsum(counts) / len(self.full)
        longest = lengths[-1] - np.sum(np.diff(lengths) * ended[:-1] ** batch)
        mean = np.dot(lengths, counts) / len(self.full)
        return float(1 - mean / longest) if longest else 0.0

    def pack_at(self, limit: int) -> Packing:
        """Return what packing makes of all rows, cut at `limit`: milliseconds, for it counts lengths and not rows."""
        lengths, counts = _count_cut(self.full, limit)
        rows = count_packed(dict(zip(lengths.tolist(), counts.tolist(), strict=True)), limit)
        return Packing(
            limit=limit, rows=rows, efficiency=self.at(limit).tokens_kept / (rows * limit) if rows else 0.0
        )


def count_places(trained: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return int64 [longest]: how many rows learn the token at each place.

    trained: bool [tokens of all rows]; edges: int64 [rows + 1]. Read in stretches, for both may be mapped from disk.
    """
    counts = np.zeros(int(np.diff(edges).max(initial=0)), dtype=np.int64)
    row = 0
    while row < len(edges) - 1:
        stop = max(int(np.searchsorted(edges, edges[row] + BATCH_TOKENS, side="right")) - 1, row + 1)
        start = edges[row]
        learned = np.flatnonzero(trained[start : edges[stop]])
        places = learned - np.repeat(edges[row:stop] - start, np.diff(edges[row : stop + 1]))[learned]
        found = np.bincount(places)
        counts[: len(found)] += found
        row = stop
    return counts


def summarize(counts: np.ndarray) -> LengthSummary:
    """Return the Summary of int64 [rows]; percentiles are counts that occur (nearest rank)."""
    if not len(counts):
        return LengthSummary()
    p50, p95 = np.percentile(counts, [50, 95], method="inverted_cdf")
    return LengthSummary(
        total=int(counts.sum()), mean=float(counts.mean()), p50=int(p50), p95=int(p95), max=int(counts.max())
    )


def make_histogram(counts: np.ndarray, bins: int = HISTOGRAM_BINS) -> Histogram:
    """Return int64 [rows] as at most `bins` bins with whole numbers at their edges."""
    if not len(counts):
        return Histogram(edges=(0, 1), counts=(0,), scale="linear")
    low, high = int(counts.min()), int(counts.max()) + 1
    log = high > LOG_FROM * max(float(np.median(counts)), 1.0)
    if log:
        edges = np.unique(np.rint(np.geomspace(max(low, 1), high, bins + 1)).astype(np.int64))
        edges[0] = low
    else:
        step = -(-(high - low) // bins)
        edges = np.arange(low, high + step, step)
    found, _ = np.histogram(counts, edges)
    return Histogram(
        edges=tuple(edges.tolist()), counts=tuple(found.tolist()), scale="log" if log else "linear"
    )


def count_packed(counts: dict[int, int], limit: int) -> int:
    """Return how many rows of `limit` places best fit decreasing needs for `counts` documents of each length.

    Exact: documents go, longest first, into the fullest row that has room for them, many alike at a time.
    """
    rows = 0
    room: Counter[int] = Counter()
    for length in sorted(counts, reverse=True):
        left = counts[length] if length > 0 else 0
        spaces = sorted(space for space, number in room.items() if number)
        for space in spaces:
            if space < length or not left:
                continue
            left = _place(room, space, room[space], length, left)
        if left:
            fresh = -(-left // (limit // length))
            rows += fresh
            room[limit] += fresh
            _place(room, limit, fresh, length, left)
    return rows


def _place(room: Counter[int], space: int, rows: int, length: int, left: int) -> int:
    """Put `left` documents into `rows` rows with `space` left, filling one after another; return how many remain."""
    each = space // length
    full = min(rows, left // each)
    room[space] -= full
    room[space - each * length] += full
    left -= full * each
    if left and full < rows:
        room[space] -= 1
        room[space - left * length] += 1
        left = 0
    return left


def _count_cut(full: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (lengths, counts), int64: how often each length occurs in sorted `full`, cut at `limit`."""
    short = int(np.searchsorted(full, limit, side="right"))
    lengths, counts = np.unique(full[:short], return_counts=True)
    if cut := len(full) - short:
        if len(lengths) and lengths[-1] == limit:
            counts[-1] += cut
        else:
            lengths, counts = np.append(lengths, limit), np.append(counts, cut)
    return lengths, counts
