"""Put short examples together into full rows, so that no processor time goes into padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One row of a batch: one document, or several behind each other."""

    token_ids: np.ndarray
    """int32 [tokens]"""
    trained: np.ndarray
    """bool [tokens]; the first token of each document is never trained: nothing predicts it."""
    lengths: tuple[int, ...]
    """Tokens of each document in it; they add up to len(token_ids)."""


def position_ids(lengths: Sequence[int]) -> np.ndarray:
    """Return int64 [tokens]: the position of each token, beginning anew with each document."""
    return np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])


def pack(examples: Sequence[Example], max_length: int) -> list[Example]:
    """Return `examples` packed into rows of at most `max_length` tokens, none cut (best fit decreasing, by trl).

    Every example must be no longer than `max_length`. Attention must be kept within `lengths` to be exact.
    """
    import pyarrow
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    if not examples:
        return []
    # Only each document's number goes through trl, once a token; ids and masks are put together here.
    lengths = np.asarray([len(example.token_ids) for example in examples])
    numbers = np.repeat(np.arange(len(examples), dtype=np.int32), lengths)
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    table = pyarrow.table({"number": pyarrow.LargeListArray.from_arrays(edges, numbers)})
    with _quiet_datasets():
        packed = pack_dataset(
            Dataset(table),
            max_length,
            strategy="bfd",
            map_kwargs={"batch_size": len(examples), "keep_in_memory": True, "load_from_cache_file": False},
        ).with_format("numpy")
        rows = [(row["number"], row["seq_lengths"]) for row in packed]
    return [_join([examples[number[end - 1]] for end in np.cumsum(parts)]) for number, parts in rows]


def join_blocks(examples: Sequence[Example], max_length: int) -> list[Example]:
    """Return the tokens of `examples` behind each other, cut into blocks of `max_length`; the last may be shorter.

    Each block counts as one document: a text may begin in one block and go on in the next.
    """
    if not examples:
        return []
    token_ids = np.concatenate([example.token_ids for example in examples])
    blocks = []
    for start in range(0, len(token_ids), max_length):
        block = token_ids[start : start + max_length]
        if len(block) < 2:
            break  # A single token has nothing before it to be predicted from.
        trained = np.ones(len(block), dtype=bool)
        trained[0] = False
        blocks.append(Example(block, trained, (len(block),)))
    return blocks


def _join(parts: Sequence[Example]) -> Example:
    return Example(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.trained for part in parts]),
        tuple(length for part in parts for length in part.lengths),
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
