"""Beginnings that documents share, as arrays on their way to the device; filled up to the shape of a recording.

    stream   b x y                  T rows      filled up: b x y f f          rows f of which nothing is learned
    written  b x b y                E places    filled up: b x b y f f e ..   places e that no row sends anything from

A recording reads all of it from buffers of one size: T and E of a shape, and as many rounds of rows that stand again.
Where there are fewer such rows, what stands in their place sends what came back to the last place e: exactly 0, since
no row has its result from there, so it may be added anywhere, and as often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from studio_kernels.shared_beginnings import SharedBeginnings
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Beginnings:
    """See studio_kernels.shared_beginnings: the same as int64 arrays."""

    rows: np.ndarray
    """(E,)"""
    own: np.ndarray
    """(T,)"""
    again: tuple[tuple[np.ndarray, np.ndarray], ...]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of them, as as_shared() takes them."""
        return (self.rows, self.own, *(one for pair in self.again for one in pair))

    def fill(self, size: int, places: int, rounds: int) -> Beginnings:
        """Return the same for a stream of `size` rows, `places` written out and so many rounds: the file's docstring.

        The rows that are filled up come after the last one. Raises ValueError where the shape does not take it.
        """
        written, begun = len(self.rows), len(self.own)
        new = np.arange(begun, size)
        left, most = places - written - len(new), places - size
        longest = max((len(rows) for rows, _ in self.again), default=0)
        if size < begun or left < 1 or len(self.again) > rounds or longest > most:
            raise ValueError(
                f"{begun} rows at {written} places do not fit into {size} at {places}, in {rounds} rounds."
            )
        nothing = np.zeros(0, dtype=np.int64)
        again = (*self.again, *[(nothing, nothing)] * (rounds - len(self.again)))
        return Beginnings(
            rows=np.concatenate([self.rows, new, np.full(left, size - 1)]),
            own=np.concatenate([self.own, written + np.arange(len(new))]),
            again=tuple(
                (
                    # Other rows each time: on a card additions to one and the same would wait for each other.
                    np.concatenate([rows, np.arange(most - len(rows)) % size]),
                    np.concatenate([there, np.full(most - len(rows), places - 1)]),
                )
                for rows, there in again
            ),
        )


def begin_apart(rows: int) -> Beginnings:
    """Return Beginnings of a stream of so many rows of which none is shared."""
    once = np.arange(rows)
    return Beginnings(rows=once, own=once, again=())


def as_shared(rows: Tensor, own: Tensor, *again: Tensor) -> SharedBeginnings:
    """Return Beginnings.arrays as they were sent."""
    return SharedBeginnings(rows=rows, own=own, again=tuple(zip(again[0::2], again[1::2], strict=True)))
