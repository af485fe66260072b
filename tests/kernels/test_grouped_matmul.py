"""Grouped products: where rows lie, packed weights expert by expert, gradients against autograd."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import grouped_matmul
from studio_kernels.dispatch import op_named
from studio_kernels.grouped_matmul import TILE, Groups
from studio_kernels.nf4 import NF4, Nf4
from studio_kernels.test_inputs import Draws

from tests.kernels.launches import TARGETS, Launch, Recorder

REFERENCE = op_named("grouped_matmul").reference


def groups_of(*counts: int) -> Groups:
    """Groups of experts that have so many rows."""
    experts = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return Groups.of(experts, len(counts))


@pytest.mark.parametrize(
    "counts", [(3, 0, 5), (0, 0, 0), (TILE, TILE + 1, 0, 1), (0, 2 * TILE), (1,) * 40, (200,)], ids=str
)
@pytest.mark.parametrize("size", [TILE, 2 * TILE])
def test_tiles_cover_every_row_once_and_their_count_is_known_beforehand(counts, size):
    groups = groups_of(*counts)
    found = []
    for expert, first, end in groups.tiles(size).tolist():
        found += [(expert, row) for row in range(first, min(first + size, end))]
    expected = [(e, row) for e, start, end in groups.filled for row in range(start, end)]
    assert sorted(found) == expected and len(expected) == sum(counts)
    assert groups.tiles(size).shape[0] == -(-sum(counts) // size) + len(counts) - 1


def test_products_equal_one_product_a_row():
    draws, groups = Draws(dtype=torch.float64, device="cpu"), groups_of(3, 0, 5, 1)
    expert = torch.tensor([0] * 3 + [2] * 5 + [3])
    x, weight, u, b = draws.normal(9, 6), draws.normal(4, 7, 6), draws.normal(9, 2), draws.normal(4, 7, 2)
    expected = torch.einsum("sk,snk->sn", x, weight[expert]) * 0.5 + torch.einsum("sr,snr->sn", u, b[expert])
    torch.testing.assert_close(REFERENCE.product(x, weight, groups, scale=0.5, tail=(u, b)), expected)
    back = REFERENCE.product(expected, weight, groups, transposed=True)
    torch.testing.assert_close(back, torch.einsum("sn,snk->sk", expected, weight[expert]))


def test_adapter_gradients_equal_autograd():
    draws, groups = Draws(dtype=torch.float64, device="cpu"), groups_of(3, 0, 5, 1)
    expert = torch.tensor([0] * 3 + [2] * 5 + [3])
    x, dy = draws.normal(9, 6), draws.normal(9, 7)
    a, b = draws.normal(4, 2, 6).requires_grad_(), draws.normal(4, 7, 2).requires_grad_()
    y = 0.5 * torch.einsum("snr,srk,sk->sn", b[expert], a[expert], x)
    expected = torch.autograd.grad(y, (a, b), dy)
    u = REFERENCE.product(x, a.detach(), groups, scale=0.5)
    g = REFERENCE.product(dy, b.detach(), groups, transposed=True, scale=0.5)
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    REFERENCE.gradient(g, x, groups, out=da)
    REFERENCE.gradient(dy, u, groups, out=db)
    torch.testing.assert_close((da, db), expected)
    assert not da[1].any()


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(("outputs", "width"), [(128, 256), (6, 40), (5, 7)])
def test_a_packed_weight_is_decoded_expert_by_expert(outputs, width, nested):
    """Where an expert is whole blocks, and where it begins inside one, or inside a byte."""
    draws, groups = Draws(dtype=torch.float32, device="cpu"), groups_of(2, 0, 3)
    packed = Nf4.drawn(draws, (3 * outputs, width), torch.float32, nested=nested)
    weight = NF4.reference.forward(packed, torch.empty(3 * outputs, width)).view(3, outputs, width)
    x = draws.normal(5, width)
    assert torch.equal(REFERENCE.product(x, packed, groups), REFERENCE.product(x, weight, groups))
    dy = draws.normal(5, outputs)
    ours, theirs = (REFERENCE.product(dy, each, groups, transposed=True) for each in (packed, weight))
    assert torch.equal(ours, theirs)


@pytest.mark.computing
@pytest.mark.parametrize(
    ("outputs", "inputs", "swapped", "transposed"),
    [
        (5760, 2880, True, False),
        (5760, 2880, True, True),
        (2816, 704, False, True),
        (1536, 2048, False, False),
    ],
)
def test_weights_are_read_16_bytes_at_once(outputs, inputs, swapped, transposed, monkeypatch):
    """Of gpt-oss, Gemma 4 and Qwen3, whose widths are no multiple of a tile's: on an H200 2 bytes at once took 6x."""
    launches: list[Launch] = []
    recorder = Recorder("product", grouped_matmul._product_kernel, launches)
    monkeypatch.setattr(grouped_matmul, "_product_kernel", recorder)
    monkeypatch.setattr(grouped_matmul, "interpreted", lambda: False)
    weight = torch.empty(2, inputs, outputs, dtype=torch.bfloat16).transpose(1, 2)
    if not swapped:
        weight = weight.contiguous()
    x = torch.empty(64, outputs if transposed else inputs, dtype=torch.bfloat16)
    grouped_matmul.fused_product(x, weight, groups_of(30, 34), transposed=transposed)
    code = launches[0].compile(TARGETS["sm_90"]).asm["ptx"]
    assert "ld.global.b16" not in code and "cp.async.cg.shared.global" in code
