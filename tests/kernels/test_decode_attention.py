"""Attention over pages beside PyTorch's own over the same keys in a row."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.decode_attention import PAGE_TOKENS, count_parts, reference_forward
from studio_kernels.write_pages import reference_forward as write


@pytest.mark.parametrize("window", [0, 5, 64])
def test_pages_filled_token_by_token_hold_what_is_attended_to(window):
    """Two slots of 70 and 66 tokens and an idle one, 4 query heads and 2 key heads of 8."""
    torch.manual_seed(0)
    counts = [70, 0, 66]
    k, v = torch.randn(2, 3, 70, 2, 8, dtype=torch.float64).unbind()
    q = torch.randn(3, 4, 8, dtype=torch.float64)
    pages = [torch.full((5, PAGE_TOKENS, 2, 8), float("nan"), dtype=torch.float64) for _ in "kv"]
    table = torch.tensor([[3, 1], [-1, -1], [2, 4]], dtype=torch.int32)
    for token in range(70):
        lengths = torch.tensor([token + 1 if token < count else 0 for count in counts], dtype=torch.int32)
        write(k[:, token], v[:, token], *pages, table.clamp_min(0), lengths)
    lengths = torch.tensor(counts, dtype=torch.int32)
    out = reference_forward(q, *pages, table, lengths, scale=0.3, window=window)
    for slot, count in enumerate(counts):
        first = max(0, count - window) if window else 0
        keys, values = (x[slot, first:count].transpose(0, 1).repeat_interleave(2, 0) for x in (k, v))
        shares = (torch.einsum("hd,hkd->hk", q[slot], keys) * 0.3).softmax(-1)
        expected = torch.einsum("hk,hkd->hd", shares, values)
        torch.testing.assert_close(out[slot], expected)


def test_parts_fill_a_card_and_are_no_more_than_tiles():
    assert count_parts(64, 8, 8192, 64) == 2 and count_parts(1, 8, 1024, 64) == 16
    assert count_parts(1, 1, 1 << 20, 64) == 128 and count_parts(200, 8, 8192, 64) == 1
