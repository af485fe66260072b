"""Lengths: every figure at a limit equals a count over the rows; packing equals what training packs."""

import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from studio.data.lengths import (
    Lengths,
    LengthSummary,
    count_packed,
    count_places,
    make_histogram,
    summarize,
)


def make_masks(count: int, seed: int = 0) -> list[np.ndarray]:
    """Masks of 0 to 80 tokens with stretches that are learned; some learn nothing."""
    random = np.random.default_rng(seed)
    masks = []
    for _ in range(count):
        size = int(random.integers(0, 81))
        mask = random.random(size) < 0.5 if random.random() < 0.9 else np.zeros(size, bool)
        mask[:1] = False
        mask[: int(random.integers(0, size + 1))] = False
        masks.append(mask)
    return masks


def make_lengths(masks: list[np.ndarray]) -> Lengths:
    edges = np.concatenate([[0], np.cumsum([len(mask) for mask in masks])]).astype(np.int64)
    flat = np.concatenate([np.zeros(0, bool), *masks])
    return Lengths(
        np.diff(edges),
        np.array([int(np.argmax(mask)) if mask.any() else 0 for mask in masks], dtype=np.int64),
        np.array([int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0 for mask in masks], dtype=np.int64),
        np.array([int(mask.sum()) for mask in masks], dtype=np.int64),
        count_places(flat, edges),
    )


@pytest.mark.parametrize("limit", [1, 2, 7, 40, 79, 80, 81, 1000])
def test_at_a_limit(limit):
    masks = make_masks(400)
    found = make_lengths(masks).at(limit)
    assert found.rows_cut == sum(len(mask) > limit for mask in masks)
    assert found.prompts_fill == sum(mask.any() and not mask[:limit].any() for mask in masks)
    assert found.answers_cut == sum(mask[:limit].any() and mask[limit:].any() for mask in masks)
    assert found.tokens_kept == sum(len(mask[:limit]) for mask in masks)
    assert found.tokens_lost == sum(len(mask[limit:]) for mask in masks)
    assert found.trained_kept == sum(int(mask[:limit].sum()) for mask in masks)


def test_trained_share_and_answers():
    masks = make_masks(100, seed=1)
    lengths = make_lengths(masks)
    trained = [int(mask.sum()) for mask in masks]
    assert lengths.trained_share == pytest.approx(sum(trained) / sum(map(len, masks)))
    assert lengths.answers.tolist() == sorted(count for count in trained if count)
    assert len(lengths) == 100


def test_no_rows():
    lengths = make_lengths([])
    assert lengths.at(8).tokens_kept == 0 and lengths.pad_at(8, 4) == 0 and lengths.trained_share == 0
    assert lengths.pack_at(8).rows == 0 and lengths.pack_at(8).efficiency == 0


def test_places_are_counted_in_any_stretches(monkeypatch):
    masks = make_masks(60, seed=2) + [np.ones(500, bool)]
    flat, edges = np.concatenate(masks), np.concatenate([[0], np.cumsum([len(mask) for mask in masks])])
    wanted = [sum(place < len(mask) and bool(mask[place]) for mask in masks) for place in range(500)]
    assert count_places(flat, edges).tolist() == wanted
    monkeypatch.setattr("studio.data.lengths.BATCH_TOKENS", 100)
    assert count_places(flat, edges).tolist() == wanted


def best_fit_decreasing(lengths: list[int], limit: int) -> int:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [i for i, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting, key=rooms.__getitem__)] -= length
        else:
            rooms.append(limit - length)
    return len(rooms)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 60), st.lists(st.integers(1, 60), max_size=80))
@example(18, [10, 7, 3, 9, 6])  # the emptiest row that fits would need one more
def test_packing_counts_what_best_fit_decreasing_makes(limit, lengths):
    lengths = [min(length, limit) for length in lengths]
    values, counts = np.unique(np.array(lengths, dtype=np.int64), return_counts=True)
    alike = dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert count_packed(alike, limit) == best_fit_decreasing(lengths, limit)


@pytest.mark.computing
def test_packing_equals_that_of_training():
    from studio.data.sequence_packing import Example, pack

    full = np.random.default_rng(3).integers(2, 60, 400)
    lengths = Lengths(full, np.zeros(400), full, full)
    packing = lengths.pack_at(48)
    cut = np.minimum(full, 48)
    examples = [Example(np.zeros(n, np.int32), np.ones(n, bool), (int(n),)) for n in cut]
    assert packing.rows == len(pack(examples, 48))
    assert packing.efficiency == pytest.approx(cut.sum() / (packing.rows * 48))


def test_padding_is_what_random_batches_have():
    random = np.random.default_rng(4)
    full = random.lognormal(3, 1, 500).astype(np.int64) + 2
    batches = np.minimum(random.choice(full, (200_000, 4)), 64)
    wanted = 1 - batches.sum() / (4 * batches.max(axis=1).sum())
    assert Lengths(full, full, full, full).pad_at(64, 4) == pytest.approx(wanted, abs=0.003)
    assert Lengths(full, full, full, full).pad_at(64, 1) == pytest.approx(0, abs=1e-12)


def test_a_dragged_limit_is_answered_at_once():
    full = np.random.default_rng(5).lognormal(5, 1, 300_000).astype(np.int64) + 2
    lengths = Lengths(full, full // 2, full, full - full // 2)
    begin = time.perf_counter()
    for limit in range(100, 1100):
        lengths.at(limit)
    assert (time.perf_counter() - begin) / 1000 < 1e-4, "about 5 us on a quiet machine"


def test_summary():
    assert summarize(np.array([5, 1, 3, 9, 2])) == LengthSummary(total=20, mean=4.0, p50=3, p95=9, max=9)
    assert summarize(np.zeros(0, np.int64)) == LengthSummary()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=200))
def test_histogram_counts_every_row_once(values):
    found = make_histogram(np.array(values, dtype=np.int64))
    assert sum(found.counts) == len(values) and len(found.edges) == len(found.counts) + 1 <= 61
    assert list(found.edges) == sorted(set(found.edges))
    for i, count in enumerate(found.counts):
        assert count == sum(found.edges[i] <= value < found.edges[i + 1] for value in values)


def test_histogram_scale_follows_the_tail():
    even = np.arange(100, 200)
    assert make_histogram(even).scale == "linear"
    assert make_histogram(np.append(even, 100_000)).scale == "log"
