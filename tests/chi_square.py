"""Whether draws come from a distribution: Pearson's statistic, and how often right draws pass it."""

from __future__ import annotations

import torch
from torch import Tensor

DRAWS, SEEDS = 50_000, range(20)
"""Of each seed; the tests let one of the seeds fall below 0.01, where 0.2 are to be expected."""


def find_share(found: Tensor, expected: Tensor, freedom: int | None = None) -> float:
    """Return how often right draws differ by as much as `found` from `expected` counts, of the same shape.

    What is never expected must never be found; `freedom`: degrees, those of one distribution where it is None.
    """
    possible = expected > 0
    assert not found[~possible].any(), "drawn, though impossible"
    found, expected = found[possible].double(), expected[possible].double()
    statistic = ((found - expected).square() / expected).sum()
    freedom = len(expected) - 1 if freedom is None else freedom
    return float(torch.special.gammaincc(statistic.new_tensor(freedom / 2), statistic / 2))
