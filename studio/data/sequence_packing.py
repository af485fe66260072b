"""Put short examples together into full rows, so that no processor time goes into padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from studio.core.packages import import_package

GROUP_TOKENS = 4 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class RolloutFacts:
    """What is known of an answer that the model drew itself; arrays float32 [tokens of its Example]."""

    advantage: float
    """By how much it was better than the other answers to its question."""
    share: float = 1.0
    """How many answers it counts for where a step counts answers: more than itself where some were left out."""
    old: np.ndarray | None = None
    """Log-probability of each trained token when the updates by this answer began; None: it is the present one."""
    sampled: np.ndarray | None = None
    """The same as it was drawn; None where that was not told."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One row of a batch: one document, or several behind each other."""

    token_ids: np.ndarray
    """int32 [tokens]"""
    trained: np.ndarray
    """bool [tokens]; the first token of each document is never trained: nothing predicts it."""
    lengths: tuple[int, ...]
    """Tokens of each document in it; they add up to len(token_ids)."""
    weights: np.ndarray | None = None
    """float32 [tokens]: how much each trained token counts; None: each once."""
    reference: np.ndarray | None = None
    """float32 [tokens]: log-probability of each trained token by the model before it was trained, where asked for."""
    label: bool | None = None
    """Whether its answer is a good one, where the data say so."""
    answers: np.ndarray | None = None
    """bool [tokens]: which trained tokens are of answers, where an objective learns prompts, too; None: all."""
    companion: Example | None = None
    """A sequence that an objective scores beside this one."""
    window: float | None = None
    """What an objective measured of the whole step that this example is in."""
    drawn: RolloutFacts | None = None
    """Where the model itself drew its answer."""


def position_ids(lengths: Sequence[int]) -> np.ndarray:
    """Return int64 [tokens]: the position of each token, beginning anew with each document."""
    return np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])


class LazySequence(Sequence[Example]):
    """Examples by number; each is put together when it is asked for."""

    def make(self, i: int) -> Example:
        """Return example `i`, 0 <= i < len(self)."""
        raise NotImplementedError

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.make(i) for i in range(*place.indices(len(self)))]
        place = int(place)
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.make(place % len(self))


class WrappedExamples(LazySequence):
    """Other examples, each changed as it is asked for; a subclass says how in make()."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]"""
        return measure_lengths(self.examples)

    @property
    def documents(self) -> np.ndarray:
        """int64 [examples]"""
        return count_documents(self.examples)


class Packed(LazySequence):
    """Rows of several examples each."""

    def __init__(self, examples: Sequence[Example], numbers: np.ndarray, edges: np.ndarray) -> None:
        """numbers: int64 [examples], in the order of the rows; edges: int64 [rows + 1], where each row begins."""
        self.examples, self.numbers, self.edges = examples, numbers, edges

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def documents(self) -> np.ndarray:
        """int64 [rows]"""
        return np.add.reduceat(count_documents(self.examples)[self.numbers], self.edges[:-1])

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows]"""
        return np.add.reduceat(measure_lengths(self.examples)[self.numbers], self.edges[:-1])

    def make(self, i: int) -> Example:
        """Return row `i`."""
        return _join([self.examples[k] for k in self.numbers[self.edges[i] : self.edges[i + 1]].tolist()])


class Blocks(LazySequence):
    """The tokens of examples behind each other in blocks of one length; the last may be shorter.

    Each block counts as one document: a text may begin in one block and go on in the next.
    """

    def __init__(self, examples: Sequence[Example], lengths: np.ndarray, max_length: int) -> None:
        self.examples, self.max_length = examples, max_length
        self.edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def __len__(self) -> int:
        whole, rest = divmod(int(self.edges[-1]), self.max_length)
        return whole + (rest > 1)  # A single token has nothing before it to be predicted from.

    @property
    def documents(self) -> np.ndarray:
        """int64 [blocks]"""
        return np.ones(len(self), dtype=np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [blocks]"""
        starts = np.arange(len(self), dtype=np.int64) * self.max_length
        return np.minimum(starts + self.max_length, self.edges[-1]) - starts

    @property
    def tokens(self) -> int:
        """Tokens in all blocks."""
        total = int(self.edges[-1])
        return total - (total % self.max_length == 1)

    def make(self, i: int) -> Example:
        """Return block `i`."""
        start = i * self.max_length
        stop = min(start + self.max_length, int(self.edges[-1]))
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        begins = self.edges[first:last].tolist()  # of each only its part is copied: one may be a whole book
        pieces = [
            self.examples[k].token_ids[max(0, start - begin) : stop - begin]
            for k, begin in enumerate(begins, start=first)
        ]
        trained = np.ones(stop - start, dtype=bool)
        trained[0] = False
        return Example(np.concatenate(pieces), trained, (stop - start,))


def measure_lengths(examples: Sequence[Example]) -> np.ndarray:
    """Return int64 [examples]: tokens of each."""
    known = getattr(examples, "lengths", None)
    return np.asarray([len(one.token_ids) for one in examples] if known is None else known, dtype=np.int64)


def cut_example(example: Example, most: int, trained: np.ndarray) -> Example:
    """Return the first `most` tokens of `example`, of which `trained` (bool, so many) are learned, as they count."""
    lengths, left = [], most
    for length in example.lengths:
        lengths.append(min(length, left))
        left -= lengths[-1]
    weights = example.weights
    if weights is not None:  # what was not learned has no weight of its own
        weights = np.where(weights[:most] > 0, weights[:most], 1).astype(np.float32)
    return Example(
        example.token_ids[:most],
        trained,
        tuple(length for length in lengths if length),
        weights,
        None if example.reference is None else example.reference[:most],
        example.label,
        None if example.answers is None else np.ones(most, dtype=bool),
        drawn=None if example.drawn is None else RolloutFacts(example.drawn.advantage, example.drawn.share),
    )


def document_starts(example: Example) -> np.ndarray:
    """Return the place of each document's first token in `example`."""
    return np.cumsum((0, *example.lengths[:-1]))


def count_trained(example: Example) -> int:
    """Return how many tokens of `example` are predicted with a loss; a document's first token never is."""
    trained = example.trained.copy()
    trained[document_starts(example)] = False
    return int(trained.sum())


def count_documents(examples: Sequence[Example]) -> np.ndarray:
    """Return int64 [examples]: documents of each."""
    known = getattr(examples, "documents", None)
    return np.asarray([len(one.lengths) for one in examples] if known is None else known, dtype=np.int64)


def count_labels(examples: Sequence[Example]) -> tuple[int, int]:
    """Return how many of `examples` hold a good answer and how many a bad one."""
    known = getattr(examples, "labels", None)
    labels = np.asarray(
        [-1 if one.label is None else one.label for one in examples] if known is None else known
    )
    return int((labels == 1).sum()), int((labels == 0).sum())


def pack(examples: Sequence[Example], max_length: int) -> Packed:
    """Return `examples` packed into rows of at most `max_length` tokens, none cut (best fit decreasing, by trl).

    Every example must be no longer than `max_length`. Attention must be kept within `lengths` to be exact.
    """
    lengths = measure_lengths(examples)
    numbers: list[np.ndarray] = []
    sizes: list[int] = []
    for group in _group(lengths):
        found, counts = _pack_group(lengths[group], max_length)
        numbers.append(found + group.start)
        sizes += counts
    together = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    seen = np.bincount(together, minlength=len(lengths))
    assert len(seen) == len(lengths) and (seen == 1).all(), "documents lost or doubled while they were packed"
    rows = np.add.reduceat(lengths[together], edges[:-1]) if len(together) else lengths
    assert int(rows.sum()) == int(lengths.sum()) and (rows <= max_length).all(), "tokens lost while packing"
    return Packed(examples, together, edges)


def _group(lengths: np.ndarray) -> Iterator[slice]:
    """Yield stretches of at most GROUP_TOKENS tokens (or one example): what is packed at once is held in memory."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + GROUP_TOKENS, side="right")))
        yield slice(start, stop)
        start = stop


def _pack_group(lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, list[int]]:
    """Return the numbers of the examples row by row, and how many each row has."""
    import pyarrow

    dataset = import_package("datasets", "datasets").Dataset
    pack_dataset = import_package("trl.data_utils", "trl").pack_dataset
    # Only each document's number goes through trl, once a token; ids and masks are put together at use.
    numbers = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    table = pyarrow.table({"number": pyarrow.LargeListArray.from_arrays(edges, numbers)})
    with _quiet_datasets():
        packed = pack_dataset(
            dataset(table),
            max_length,
            strategy="bfd",
            map_kwargs={"batch_size": len(lengths), "keep_in_memory": True, "load_from_cache_file": False},
        ).with_format("numpy")
        rows = [row["number"][np.cumsum(row["seq_lengths"]) - 1].astype(np.int64) for row in packed]
    return np.concatenate(rows), [len(row) for row in rows]


def join_blocks(examples: Sequence[Example], max_length: int) -> Blocks:
    """Return the tokens of `examples` behind each other, cut into blocks of `max_length`."""
    return Blocks(examples, measure_lengths(examples), max_length)


def _join(parts: Sequence[Example]) -> Example:
    return Example(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.trained for part in parts]),
        tuple(length for part in parts for length in part.lengths),
        join_values(parts, "weights", 1.0),
    )


def join_values(
    parts: Sequence[Example], name: str, absent: float, dtype: type = np.float32
) -> np.ndarray | None:
    """Return what `parts` have under `name` behind each other, `absent` where one has none; None: none has."""
    values = [getattr(part, name) for part in parts]
    if all(value is None for value in values):
        return None
    pairs = zip(parts, values, strict=True)
    return np.concatenate(
        [np.full(len(part.token_ids), absent, dtype) if value is None else value for part, value in pairs]
    )


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    """Keep the progress bar of datasets off the screen; it belongs to no phase that a person knows."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()
