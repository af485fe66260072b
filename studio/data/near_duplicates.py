"""Near duplicates: rows whose words are nearly the same, found by MinHash and proved by comparing their shingles.

A shingle is SHINGLE_WORDS words in a row, as many characters in scripts without spaces; case and white space do not
count. MinHash: Broder, "On the resemblance and containment of documents", 1997; its bands: Leskovec, Rajaraman,
Ullman, "Mining of Massive Datasets", chapter 3. With 18 bands of 7 a pair of Jaccard similarity 0.8 becomes a
candidate with probability 0.985, one of 0.9 with 0.99998.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from studio.data.row_stats import fold
from studio.data.unicode_scripts import read_code_points, unspaced_table

NEAR_ROWS = 250_000
"""Above, near duplicates are looked for only when asked: 250,000 rows of 700 characters take about 10 s."""
NEAR_CHARACTERS = 250_000_000
"""Above, the same: about as long, and 200 MB."""
THRESHOLD = 0.8
SHINGLE_WORDS = 5
BANDS, BAND_HASHES = 18, 7
PERMUTATIONS = BANDS * BAND_HASHES
LEADERS = 16
"""A row is compared with this many others of its band's bucket: a bucket of 100,000 rows is no 5 billion pairs."""
ESTIMATE_SLACK = 0.1
"""Pairs whose sketches agree less than THRESHOLD by so much (3 standard deviations) are not compared exactly."""
COMPARISONS = 24
"""A row that differs from so many candidates is taken for no near duplicate."""
BATCH_CHARACTERS = 250_000
ROW_CHARACTERS = 65_536
"""Of longer rows only the start is compared."""
MULTIPLIER = 0x9E3779B97F4A7C15
"""Odd, so that its powers can be undone modulo 2^64."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sketches:
    """What is compared of each row."""

    shingles: np.ndarray
    """uint32: hashes of the shingles of all rows, those of a row sorted and each once."""
    edges: np.ndarray
    """int64 [rows + 1]: where each row's shingles begin."""
    bands: np.ndarray
    """uint64 [rows, BANDS]: rows that share one may be near."""
    signatures: np.ndarray
    """uint8 [rows, PERMUTATIONS]: the last byte of each MinHash value."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.edges) - 1

    def take(self, rows: np.ndarray) -> Sketches:
        """Return the sketches of `rows` (int64) in that order."""
        return Sketches(
            shingles=self.take_shingles(rows),
            edges=np.concatenate([[0], np.cumsum(np.diff(self.edges)[rows])]),
            bands=self.bands[rows],
            signatures=self.signatures[rows],
        )

    def take_shingles(self, rows: np.ndarray) -> np.ndarray:
        """Return uint32: the shingles of `rows`, behind each other."""
        counts = np.diff(self.edges)[rows]
        before = np.cumsum(counts) - counts
        return self.shingles[np.arange(counts.sum()) + np.repeat(self.edges[rows] - before, counts)]


def sketch(texts: Iterable[str], on_batch: Callable[[int], None] | None = None) -> Sketches:
    """Return the Sketches of `texts`; `on_batch` hears how many are done, and may raise to stop.

    The same on every machine and in every process: no hash depends on Python's seed.
    """
    shingles, counts = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)]
    bands, signatures = [np.zeros((0, BANDS), np.uint64)], [np.zeros((0, PERMUTATIONS), np.uint8)]
    odd = np.uint64(MULTIPLIER) ** np.arange(1, BAND_HASHES + 1, dtype=np.uint64)
    permutations = draw_permutations()
    done = 0
    for batch in _batches(texts):
        hashes, edges = cut_shingles(batch)
        values = hash_minima(hashes, edges, permutations)
        wide = values.astype(np.uint64).reshape(len(batch), BANDS, BAND_HASHES)
        shingles.append(hashes)
        counts.append(np.diff(edges))
        bands.append(_mix((wide * odd).sum(axis=2, dtype=np.uint64)))
        signatures.append(values.astype(np.uint8))
        done += len(batch)
        if on_batch is not None:
            on_batch(done)
    return Sketches(
        shingles=np.concatenate(shingles),
        edges=np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        bands=np.concatenate(bands),
        signatures=np.concatenate(signatures),
    )


def draw_permutations() -> np.ndarray:
    """Return uint32 [2, PERMUTATIONS]: odd factors and summands of permutations h -> factor h + summand mod 2^32."""
    # RandomState's numbers are the same in every version of NumPy; a Generator's may change.
    drawn = np.random.RandomState(1).randint(0, 1 << 32, size=(2, PERMUTATIONS), dtype=np.uint32)
    drawn[0] |= np.uint32(1)
    return drawn


def hash_minima(hashes: np.ndarray, edges: np.ndarray, permutations: np.ndarray) -> np.ndarray:
    """Return uint32 [rows, PERMUTATIONS]: the MinHash of each row, the least of its hashes under each permutation.

    All rows at once: 6 times as fast as one after another. Rows without hashes get the greatest value.
    """
    minima = np.full((PERMUTATIONS, len(edges) - 1), 0xFFFFFFFF, dtype=np.uint32)
    filled = np.flatnonzero(np.diff(edges))
    if len(filled):
        for number, (factor, summand) in enumerate(permutations.T):
            minima[number, filled] = np.minimum.reduceat(hashes * factor + summand, edges[filled])
    return minima.T


def cut_shingles(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return (hashes uint32, edges int64 [texts + 1]): the shingles of each text, sorted and each once.

    A text of fewer than SHINGLE_WORDS words has one, all of it; one without words has none.
    """
    # Folded texts hold no line feed, so that it parts them. One stands at both ends, too.
    points = read_code_points("\n" + "\n".join(map(fold, texts)) + "\n")
    parting = points == 10
    gap = parting | (points == 32)
    alone = unspaced_table()[points]
    # A word begins where no gap is but one was before, or where a character stands for itself.
    begins = ~gap
    begins[1:] &= gap[:-1] | alone[1:] | alone[:-1]
    ends = ~gap
    ends[:-1] &= gap[1:] | alone[1:] | alone[:-1]
    first, last = np.flatnonzero(begins), np.flatnonzero(ends) + 1
    row = np.cumsum(parting)[first] - 1

    words = np.bincount(row, minlength=len(texts))
    words_before = np.cumsum(words) - words
    shingles = np.where(words > 0, np.maximum(words - SHINGLE_WORDS + 1, 1), 0)
    starts = np.flatnonzero(np.arange(len(first)) - words_before[row] < shingles[row])
    row = row[starts]
    stops = np.minimum(starts + SHINGLE_WORDS, (words_before + words)[row]) - 1

    # Polynomial hashes of prefixes, modulo 2^64: the difference of two, moved to the start, is that of a stretch.
    powers = _powers(MULTIPLIER, len(points))
    prefixes = np.zeros(len(points) + 1, dtype=np.uint64)
    np.cumsum(points * powers, out=prefixes[1:])
    inverses = _powers(pow(MULTIPLIER, -1, 2**64), len(points))
    hashes = _mix((prefixes[last[stops]] - prefixes[first[starts]]) * inverses[first[starts]])
    keys = np.sort((row.astype(np.uint64) << np.uint64(32)) | (hashes >> np.uint64(32)))
    unique = keys[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
    edges = np.searchsorted(unique, np.arange(len(texts) + 1, dtype=np.uint64) << np.uint64(32))
    return unique.astype(np.uint32), edges.astype(np.int64)


def find_near(sketches: Sketches, first: int | None = None, threshold: float = THRESHOLD) -> np.ndarray:
    """Return int64 [found, 2]: (row, an earlier row that it nearly repeats), sorted; each row at most once.

    With `first` only the rows from there on are compared, and only with the rows before it. Every pair
    returned has a Jaccard similarity of at least `threshold`.
    """
    earlier = np.full(len(sketches), -1, dtype=np.int64)
    refused = np.zeros(len(sketches), dtype=np.int64)
    for band in range(BANDS):
        for pairs in _find_candidates(sketches, band, earlier, first):
            pairs = pairs[(earlier[pairs[:, 0]] < 0) & (refused[pairs[:, 0]] < COMPARISONS)]
            pairs = pairs[_estimate(sketches, pairs) >= threshold - ESTIMATE_SLACK]
            near = measure_jaccard(sketches, pairs) >= threshold
            earlier[pairs[near, 0]] = pairs[near, 1]
            np.add.at(refused, pairs[~near, 0], 1)
    rows = np.flatnonzero(earlier >= 0)
    return np.stack([rows, earlier[rows]], axis=1)


def count_clusters(links: np.ndarray) -> int:
    """Return how many groups the pairs of `find_near` form: those rows that are linked to no earlier one begin one."""
    return len(np.setdiff1d(links[:, 1], links[:, 0])) if len(links) else 0


def measure_jaccard(sketches: Sketches, pairs: np.ndarray) -> np.ndarray:
    """Return float64 [pairs]: shared shingles over all shingles of each pair (int64 [pairs, 2]), exactly."""
    results = [np.zeros(0)]
    sizes = np.diff(sketches.edges)[pairs].sum(axis=1)
    parts = np.cumsum(sizes) // BATCH_CHARACTERS
    for part in dict.fromkeys(parts.tolist()):
        chosen = pairs[parts == part]
        both = sizes[parts == part]
        taken = sketches.take_shingles(chosen.ravel())
        keys = (np.repeat(np.arange(len(chosen), dtype=np.uint64), both) << np.uint64(32)) | taken
        keys.sort()
        shared = np.bincount(
            (keys[1:][keys[1:] == keys[:-1]] >> np.uint64(32)).astype(np.int64), minlength=len(chosen)
        )
        results.append(shared / np.maximum(both - shared, 1))
    return np.concatenate(results)


def _find_candidates(
    sketches: Sketches, band: int, earlier: np.ndarray, first: int | None
) -> Iterator[np.ndarray]:
    """Yield int64 [pairs, 2] of rows that share this band: each with the first of its bucket, then the second..."""
    keys = sketches.bands[:, band]
    order = np.argsort(keys, kind="stable")
    order = order[np.diff(sketches.edges)[order] > 0]
    same = keys[order][1:] == keys[order][:-1]
    start = np.flatnonzero(np.concatenate([[True], ~same])) if len(order) else np.zeros(0, np.int64)
    bucket = np.repeat(start, np.diff(np.append(start, len(order))))
    place = np.arange(len(order))
    for number in range(LEADERS):
        leader = bucket + number
        later = place > leader
        place, bucket = place[later], bucket[later]
        if not len(place):
            return
        row, other = order[place], order[leader[later]]
        wanted = earlier[row] < 0
        if first is not None:
            wanted &= (row >= first) & (other < first)
        yield np.stack([row[wanted], other[wanted]], axis=1)


def _estimate(sketches: Sketches, pairs: np.ndarray) -> np.ndarray:
    """Return float64 [pairs]: the share of MinHash values that agree."""
    found = [np.zeros(0)]
    for start in range(0, len(pairs), 10_000):
        one, other = sketches.signatures[pairs[start : start + 10_000].T]
        found.append((one == other).mean(axis=1))
    return np.concatenate(found)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for words in texts:
        batch.append(words[:ROW_CHARACTERS])
        characters += len(batch[-1])
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _powers(base: int, count: int) -> np.ndarray:
    """Return uint64 [count]: base^0, base^1, ... modulo 2^64."""
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _mix(values: np.ndarray) -> np.ndarray:
    """Return uint64 with every bit of `values` spread over all (the finaliser of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
