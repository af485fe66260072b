"""How sure a metric is: its value with bounds, and the difference of two models, by drawing rows again (bootstrap)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studio.core.metrics.metric import AnswerMetric, Counts

DRAWS = 1000
SEED = 20_260_101
BOUNDS = (2.5, 97.5)
"""Percentiles of the draws: 95 % lie between (Efron, 1979)."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value, and where 95 % of what other rows of the same kind would give lie."""

    value: float
    low: float
    high: float
    rows: int


def bound_value(metric: AnswerMetric, counts: Sequence[Counts]) -> Bounded | None:
    """Return the metric of rows that gave `counts`; None without rows."""
    if not counts:
        return None
    table = np.asarray(counts, dtype=np.float64)
    value = float(metric.total(table.sum(0)))
    low, high = _find_bounds(_draw(metric, table))
    return Bounded(value, low, high, len(counts))


def bound_difference(
    metric: AnswerMetric, ours: Mapping[int, Counts], theirs: Mapping[int, Counts]
) -> Bounded | None:
    """Return by how much our value is above theirs, over the rows that both have; the same rows are drawn of both."""
    rows = sorted(ours.keys() & theirs.keys())
    if not rows:
        return None
    one, other = (np.asarray([side[row] for row in rows], dtype=np.float64) for side in (ours, theirs))
    value = float(metric.total(one.sum(0)) - metric.total(other.sum(0)))
    low, high = _find_bounds(_draw(metric, one) - _draw(metric, other))
    return Bounded(value, low, high, len(rows))


def _draw(metric: AnswerMetric, table: np.ndarray) -> np.ndarray:
    """Return [DRAWS] values of as many rows, drawn with replacement; always the same draws for as many rows."""
    generator = np.random.default_rng(SEED)
    rows = len(table)
    sums = np.stack([table[generator.integers(0, rows, rows)].sum(0) for _ in range(DRAWS)])
    return np.asarray([metric.total(one) for one in sums])


def _find_bounds(values: np.ndarray) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.percentile(known, BOUNDS)
    return float(low), float(high)
