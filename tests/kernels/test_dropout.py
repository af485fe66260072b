"""Dropout: the published words of Philox, the statistics of the mask, and all that it must not depend on."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import dropout
from studio_kernels.dropout import DROPOUT, dropped, philox, reference

CPU = torch.device("cpu")
# Known answers of Random123 1.14 (D. E. Shaw Research), file kat_vectors, philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, -1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(counter, key, words):
    for seed in (key, torch.tensor(key)):
        found = philox(tuple(torch.tensor(each) for each in counter), seed)
        assert " ".join(f"{word.item():08x}" for word in found) == words


def mask(
    rows: int = 256, width: int = 1024, p: float = 0.5, seed: int = 1, stream: int = 0, row_offset: int = 0
):
    return dropped(rows, width, p, seed, stream, row_offset, CPU)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_asked(p):
    """In all, in every row, every column and every place of a span of 512: within 5 standard deviations."""
    found = mask(512, 2048, p).double()
    for part in (found.view(1, -1), found, found.t(), found.view(-1, 8, 64).transpose(0, 1).reshape(8, -1)):
        sigma = (p * (1 - p) / part.shape[1]) ** 0.5
        assert ((part.mean(1) - p).abs() < 5 * sigma).all()


@pytest.mark.parametrize(
    "other",
    [{"stream": 1}, {"seed": 2}, {"seed": 1 + 2**32}, {"row_offset": 256}, {"row_offset": 2**32}],
    ids=str,
)
def test_streams_seeds_and_rows_are_independent(other):
    one, two = mask().double() - 0.5, mask(**other).double() - 0.5
    assert abs((one * two).mean().item()) < 5 * 0.25 / one.numel() ** 0.5


def test_neighbours_are_independent():
    found = mask().double() - 0.5
    for rows, columns in ((0, 1), (1, 0), (0, 64), (0, 512), (1, 1)):
        pairs = found[rows:, columns:] * found[: len(found) - rows, : found.shape[1] - columns]
        assert abs(pairs.mean().item()) < 5 * 0.25 / pairs.numel() ** 0.5


def test_parts_of_the_rows_agree_with_the_whole_and_narrow_with_wide():
    whole = mask(33, 700)
    assert torch.equal(torch.cat([mask(20, 700), mask(13, 700, row_offset=20)]), whole)
    assert torch.equal(mask(33, 65), whole[:, :65])


def test_strides_do_not_matter():
    x = torch.randn(9, 100)
    wide = torch.full((9, 300), 7.0)
    y = reference(x, 0.3, 5, 2)
    assert torch.equal(reference(wide[:, 100:200].copy_(x), 0.3, 5, 2), y)
    assert torch.equal(reference(x, 0.3, torch.tensor(5), 2, out=wide[:, 150:250]), y)
    assert torch.equal(wide[:, 150:250], y) and (wide[:, 250:] == 7.0).all()
    assert torch.equal(reference(x, 0.3, 5, 2, out=x), y) and torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_kept_is_scaled_and_what_is_dropped_is_zero(dtype):
    x = torch.randn(64, 96, dtype=dtype)
    gone = mask(64, 96, 0.3, seed=-9, stream=4)
    clean = reference(x, 0.3, -9, 4)
    assert torch.equal(clean, torch.where(gone, 0, x * (1 / (1 - 0.3))))
    assert torch.equal(reference(x.masked_fill(gone, float("nan")), 0.3, -9, 4), clean)
    assert torch.equal(reference(x, 0.0, -9, 4), x)


def test_the_gradient_passes_where_the_value_did():
    x, dy = torch.randn(8, 64, dtype=torch.float64), torch.randn(8, 64, dtype=torch.float64)
    y, dx = DROPOUT.reference.forward(x, 0.4, 3, 1), DROPOUT.reference.backward(dy, 0.4, 3, 1)
    assert torch.equal(y / x == 0, dx == 0)
    torch.testing.assert_close((y * dy).sum(), (x * dx).sum())


def test_a_result_can_be_added_to_another():
    x, base = torch.randn(8, 64), torch.randn(8, 64)
    total = reference(x, 0.4, 3, 1, out=base.clone(), accumulate=True)
    torch.testing.assert_close(total, base + reference(x, 0.4, 3, 1))


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
@pytest.mark.parametrize("function", [reference, dropout.fused])
def test_no_probability_is_refused(function, p):
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        function(torch.ones(2, 2), p, 0, 0)


@pytest.mark.gpu
def test_the_kernel_drops_the_same_elements():
    for rows, width, p, seed in ((1000, 4096, 0.1, 7), (33, 14337, 0.5, -5), (5, 64, 0.05, 2**40 + 1)):
        x = torch.ones(rows, width, dtype=torch.bfloat16, device="cuda")
        y = dropout.fused(x, p, seed, 9, row_offset=2**32 - 3)
        gone = dropped(rows, width, p, seed, 9, 2**32 - 3, CPU)
        assert torch.equal(y.cpu() == 0, gone)


@pytest.mark.gpu
@pytest.mark.parametrize("function", [reference, dropout.fused])
def test_a_captured_graph_draws_anew_when_the_seed_changes(function):
    x = torch.ones(64, 640, device="cuda")
    seed, out = torch.zeros((), dtype=torch.int64, device="cuda"), torch.empty_like(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function(x, 0.5, seed, 1, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(x, 0.5, seed, 1, out=out)
    for value in (3, 4):
        seed.fill_(value)
        graph.replay()
        assert torch.equal(out.cpu() == 0, dropped(64, 640, 0.5, value, 1, 0, CPU))
