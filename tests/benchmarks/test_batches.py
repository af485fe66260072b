"""All stacks train on the same tokens: full rows, or documents of real lengths, packed or padded."""

from __future__ import annotations

import statistics
from itertools import islice

import pytest
import torch

from benchmarks.batches import IGNORED, LONGEST, Batch, draw_batches, draw_lengths, draw_rows, pack
from benchmarks.cases import Case

CPU = torch.device("cpu")


def case(lengths: str, batch: int = 2, tokens: int = 2048) -> Case:
    return Case(
        name="x", rows=(0,), shape="tiny", stack="hf", bits=16, checkpointing="none",
        batch=batch, tokens=tokens, lengths=lengths,
    )  # fmt: skip


@pytest.mark.parametrize("lengths", ["full", "packed", "padded"])
def test_two_processes_draw_the_same(lengths):
    one, other = (list(islice(draw_batches(case(lengths), 500, CPU), 3)) for _ in range(2))
    assert all(torch.equal(a.ids, b.ids) and a.lengths == b.lengths for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0].ids[:, :16], one[1].ids[:, :16])
    assert one[0].ids.min() >= 3 and one[0].ids.max() < 500


def test_lengths_are_those_of_chats():
    lengths = draw_lengths(4000, LONGEST, 0)
    assert statistics.median(lengths) == pytest.approx(350, rel=0.05)
    assert max(lengths) == LONGEST and min(lengths) >= 16


def test_packing_loses_nothing_and_wastes_little():
    documents = draw_lengths(512, 2048, 1)
    rows = pack(documents, 2048)
    assert sorted(n for row in rows for n in row) == sorted(documents)
    assert max(map(sum, rows)) <= 2048
    assert sum(documents) > 0.95 * 2048 * len(rows)


def test_padded_rows_hold_one_document_and_are_as_wide_as_the_longest():
    batch = next(draw_batches(case("padded", batch=8), 500, CPU))
    assert [len(row) for row in batch.lengths] == [1] * 8
    assert batch.ids.shape == (8, max(map(sum, batch.lengths))) and not batch.full
    assert batch.mask().sum() == batch.tokens == sum(map(sum, batch.lengths))


def test_labels_leave_out_padding_and_what_nothing_predicts():
    ids = torch.arange(10, 26).view(2, 8)
    batch = Batch(ids, ((3, 4), (8,)))
    expected = ids.clone()
    expected[0, [0, 3, 7]] = IGNORED
    expected[1, 0] = IGNORED
    assert torch.equal(batch.labels(), expected) and not batch.full and batch.tokens == 15
    assert next(draw_batches(case("full"), 500, CPU)).full


def test_packed_rows_go_on_when_the_pool_is_used_up():
    rows = list(islice(draw_rows(case("packed")), 400))
    assert all(0 < sum(row) <= 2048 for row in rows) and len(set(rows)) > 300
