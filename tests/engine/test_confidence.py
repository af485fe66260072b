"""Bounds by drawing rows again: they hold the truth as often as they say, and a difference is over the same rows."""

from __future__ import annotations

import numpy as np

from studio.core.metrics import METRICS
from studio.engine.confidence import bound_difference, bound_value

EXACT = next(metric for metric in METRICS if metric.name == "exact")
PERPLEXITY = next(metric for metric in METRICS if metric.name == "perplexity")


def test_bounds_hold_the_truth_as_often_as_they_say():
    draw, held = np.random.default_rng(3), 0
    for _ in range(200):
        bounded = bound_value(EXACT, [(float(right), 1.0) for right in draw.random(100) < 0.7])
        assert bounded.low <= bounded.value <= bounded.high and bounded.rows == 100
        held += bounded.low <= 0.7 <= bounded.high
    assert 0.88 <= held / 200 <= 1, "95 % of them, as far as 200 tell"


def test_bounds_are_the_same_each_time_and_narrow_with_rows():
    few, many = ([(float(i % 2), 1.0) for i in range(rows)] for rows in (20, 2000))
    assert bound_value(EXACT, few) == bound_value(EXACT, few)
    width = [bounded.high - bounded.low for bounded in (bound_value(EXACT, few), bound_value(EXACT, many))]
    assert 8 < width[0] / width[1] < 12, "by the root of their number"
    assert bound_value(EXACT, []) is None


def test_a_difference_is_over_the_rows_that_both_have():
    ours = {row: (1.0, 1.0) for row in range(10)} | {99: (0.0, 1.0)}
    theirs = {row: (float(row < 6), 1.0) for row in range(10)} | {77: (0.0, 1.0)}
    found = bound_difference(EXACT, ours, theirs)
    assert (found.value, found.rows) == (0.4, 10) and 0 < found.low < 0.4 < found.high
    assert bound_difference(EXACT, ours, {1000: (1.0, 1.0)}) is None


def test_perplexities_are_drawn_with_their_tokens():
    found = bound_value(PERPLEXITY, [(2.0, 1.0), (4.0, 5.0)])
    assert found.value == np.exp(1.0) and found.low == np.exp(0.8) and found.high == np.exp(2.0)
