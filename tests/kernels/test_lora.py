"""The skinny products of adapters: formulas against autograd, strides, portions, large cards, equal bits."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import lora, lora_tiling
from studio_kernels.dispatch import op_named
from studio_kernels.lora import LORA, Diagonal

from tests.kernels.launches import Launch, Recorder, check
from tests.kernels.oracle import measure

SIZES, RANKS, SCALES = (24, 8, 12), (4, 2, 4), (2.0, 0.5, 1.5)
BLOCKS = ((0, 24, 0, 4), (24, 32, 4, 6), (32, 44, 6, 10))


def test_the_formulas_are_those_of_autograd():
    torch.manual_seed(0)
    x = torch.randn(19, 20, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(size, 20, dtype=torch.float64) for size in SIZES]
    a = [torch.randn(rank, 20, dtype=torch.float64, requires_grad=True) for rank in RANKS]
    b = [
        torch.randn(n, r, dtype=torch.float64, requires_grad=True) for n, r in zip(SIZES, RANKS, strict=True)
    ]
    y = torch.cat(
        [x @ w.T + s * (x @ i.T) @ j.T for w, s, i, j in zip(weights, SCALES, a, b, strict=True)], 1
    )
    dy = torch.randn_like(y)
    dx, *expected = torch.autograd.grad(y, [x, *a, *b], dy)

    op = op_named("lora").reference
    rank, below = sum(RANKS), torch.cat(a).detach()
    scaled = torch.zeros(sum(SIZES), 16, dtype=torch.float64)
    for (top, bottom, left, right), each, scale in zip(BLOCKS, b, SCALES, strict=True):
        scaled[top:bottom, left:right] = scale * each.detach()
    gradients = [torch.ones_like(each) for each in b]
    u = torch.zeros(19, 16, dtype=torch.float64)
    op.project(x.detach(), below, out=u[:, :rank])
    g = torch.full((19, 16), float("nan"), dtype=torch.float64)
    op.gradients(dy, scaled, u, Diagonal.of(BLOCKS, gradients, SCALES, scaled), g=g)
    da = op.gradient_a(g[:, :rank], x.detach(), out=torch.ones_like(below))
    torch.testing.assert_close(da - 1, torch.cat(expected[:3]))
    for ours, theirs in zip(gradients, expected[3:], strict=True):
        torch.testing.assert_close(ours - 1, theirs)
    torch.testing.assert_close(dy @ torch.cat(weights) + g[:, :rank] @ below, dx)
    assert g[:, rank:].abs().max() == 0


def test_tiles_cover_every_block_once_and_groups_every_column():
    tail = 192
    blocks = [(0, 600, 0, 8), (600, 610, 8, 40), (700, 1000, 40, 44)]
    gradients = [torch.zeros(bottom - top, right - left) for top, bottom, left, right in blocks]
    diagonal = Diagonal.of(blocks, gradients, (1.0, 2.0, 3.0), torch.zeros(1000, tail, dtype=torch.bfloat16))
    shape = lora_tiling.choose_shape(32, torch.zeros(1, dtype=torch.bfloat16))
    covered = torch.zeros(1000, tail)
    for first, end, rank, count, _, stride in diagonal.tiles.tolist():
        covered[first : min(end, first + shape.columns), rank : rank + count] += 1
        assert stride == count
    expected = torch.zeros(1000, tail)
    for top, bottom, left, right in blocks:
        expected[top:bottom, left:right] = 1
    assert torch.equal(covered, expected)
    columns = torch.zeros(tail)
    for first, end, rank, count in diagonal.groups.tolist():
        columns[rank : rank + count] += 1
        assert all(diagonal.tiles[tile, 2] == rank for tile in range(first, end))
    assert torch.equal(columns, torch.ones(tail))
    assert diagonal.row_step == 2 and diagonal.column_step == 8


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_compiles_with_the_tiles_of_large_cards(target, monkeypatch):
    noted: list[Launch] = []
    for name in ("_add_kernel", "_outer_kernel", "_sum_rows_kernel"):
        monkeypatch.setattr(lora, name, Recorder(name, getattr(lora, name), noted))
    monkeypatch.setattr(lora_tiling, "_has_large_shared", lambda device: True)
    options = {"outputs": (1024, 1024), "ranks": (32, 32)}
    LORA.sample(rows=8, width=256, dtype=torch.bfloat16, device="cpu", **options)(LORA.triton)
    assert {launch.options["num_stages"] for launch in noted if "num_stages" in launch.options} == {3}
    check(noted, target)


def test_splits_fill_the_card_and_no_more():
    cpu = torch.device("cpu")
    assert lora_tiling.split(100, 1, cpu) == (8, 13)
    assert lora_tiling.split(100, 1000, cpu) == (1, 100)
    assert lora_tiling.split(3, 1, cpu) == (3, 1)


def test_what_a_card_needs():
    supports = {"device_type": "cuda", "dtype": torch.bfloat16, "width": 4096}
    assert LORA.supports(**supports, capability=(8, 6)).ok
    assert not LORA.supports(**supports, capability=(7, 5)).ok
    assert not LORA.supports(**supports | {"dtype": torch.float32}, capability=(8, 6)).ok


def decoder_calls(rows: int, outputs=(4096, 1024, 1024), rank: int = 16, device: str = "cuda"):
    """Run the products as a layer does; returns everything that they write."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.bfloat16)

    out, tail = sum(outputs), 64
    dy, u, b = (
        draw(rows, out + tail),
        draw(rows, tail),
        torch.zeros(out, tail, device=device, dtype=torch.bfloat16),
    )
    blocks, row = [], 0
    for i, size in enumerate(outputs):
        blocks.append((row, row + size, i * rank, (i + 1) * rank))
        b[row : row + size, i * rank : (i + 1) * rank] = draw(size, rank)
        row += size
    gradients = [torch.zeros(size, rank, device=device) for size in outputs]
    diagonal = Diagonal.of(blocks, gradients, [1.0] * len(outputs), b)
    g = LORA.triton.gradients(dy[:, :out], b, u, diagonal, g=dy[:, out:])
    u = LORA.triton.project(dy[:, :out], b.T)
    da = LORA.triton.gradient_a(u, dy[:, :out], out=torch.zeros(tail, out, device=device))
    return [g.clone(), u, da, *gradients]


@pytest.mark.gpu
def test_few_rows_go_to_cublas(monkeypatch):
    noted: list[Launch] = []
    monkeypatch.setattr(lora, "_outer_kernel", Recorder("_outer_kernel", lora._outer_kernel, noted))
    decoder_calls(64)
    assert noted == []


@pytest.fixture
def small_pays(monkeypatch):
    """The fused form for any number of rows."""
    monkeypatch.setattr(lora, "LEAST_ELEMENTS", 0)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 1000, 4096])
def test_two_runs_give_the_same_bits(rows, small_pays):
    first, second = decoder_calls(rows), decoder_calls(rows)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("portion", [1 << 20, 1 << 30])
def test_portions_of_rows_add_up(monkeypatch, portion, small_pays):
    monkeypatch.setattr(lora, "PARTIAL_BYTES", portion)
    options = {
        "rows": 3000,
        "width": 1024,
        "dtype": torch.bfloat16,
        "outputs": (4096, 1024),
        "ranks": (16, 16),
    }
    assert [each for each in measure(LORA, options, "cuda") if not each.ok] == []


@pytest.mark.gpu
def test_lengths_do_not_recompile_and_nothing_waits(small_pays):
    kernels = (lora._add_kernel, lora._outer_kernel, lora._sum_rows_kernel)
    device = torch.cuda.current_device()
    decoder_calls(64)
    compiled = [len(kernel.device_caches[device][0]) for kernel in kernels]
    assert min(compiled) >= 1
    for rows in (1, 17, 65, 4096, 20_000):
        decoder_calls(rows)
    assert [len(kernel.device_caches[device][0]) for kernel in kernels] == compiled
