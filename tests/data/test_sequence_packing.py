"""Packing: every token once, no document cut, positions begin anew; blocks: all full but the last."""

import numpy as np

from studio.data.sequence_packing import Example, join_blocks, pack, position_ids


def make_examples(lengths: list[int]) -> list[Example]:
    """Document number n holds the tokens 1000 n, 1000 n + 1, ...; every second token is trained."""
    return [
        Example(np.arange(n, dtype=np.int32) + 1000 * i, np.arange(n) % 2 == 1, (n,))
        for i, n in enumerate(lengths)
    ]


def test_position_ids_restart():
    assert position_ids((3, 1, 2)).tolist() == [0, 1, 2, 0, 0, 1]
    assert position_ids((2,)).dtype == np.int64


def test_pack_keeps_every_document_whole():
    lengths = np.random.default_rng(0).integers(1, 33, 300).tolist()
    packed = pack(make_examples(lengths), 32)
    documents = []
    for row in packed:
        assert len(row.token_ids) == len(row.trained) == sum(row.lengths) <= 32
        start = 0
        for length in row.lengths:
            ids, trained = row.token_ids[start : start + length], row.trained[start : start + length]
            assert (ids - ids[0]).tolist() == position_ids((length,)).tolist()
            assert trained.tolist() == (np.arange(length) % 2 == 1).tolist()
            documents.append((int(ids[0]) // 1000, length))
            start += length
    assert sorted(documents) == list(enumerate(lengths))
    assert len(packed) < sum(lengths) / 32 * 1.05 + 1


def test_pack_nothing():
    assert len(pack([], 8)) == 0 and len(join_blocks([], 8)) == 0


def test_blocks_hold_all_tokens_in_order():
    blocks = join_blocks(make_examples([5, 7, 9]), 8)
    assert [len(block.token_ids) for block in blocks] == [8, 8, 5]
    together = np.concatenate([block.token_ids for block in blocks])
    assert together.tolist() == [*range(5), *range(1000, 1007), *range(2000, 2009)]
    assert all(block.trained.tolist() == [False] + [True] * (len(block.trained) - 1) for block in blocks)
    assert [block.lengths for block in blocks] == [(8,), (8,), (5,)]


def test_last_block_of_one_token_is_left_out():
    assert [len(block.token_ids) for block in join_blocks(make_examples([9]), 8)] == [8]
