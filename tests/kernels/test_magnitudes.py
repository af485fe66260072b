"""DoRA's lengths: the formulas against autograd, and what the decoder's wide rows make of the kernels on a GPU."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import magnitudes
from studio_kernels.magnitudes import MAGNITUDES
from torch.nn import functional


def draw(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


@pytest.mark.parametrize("portion_bytes", [1, 1 << 20])
def test_the_twin_follows_autograd(monkeypatch, portion_bytes):
    monkeypatch.setattr(magnitudes, "PORTION_BYTES", portion_bytes)
    x, w, a, b, bias, dy = draw(9, 12), draw(7, 12), draw(3, 12), draw(7, 3), draw(7), draw(9, 7)
    m, s = draw(7).abs_().requires_grad_(), 0.5
    n = (w + s * b @ a).norm(dim=1)
    y = functional.linear(x, (m / n)[:, None] * (w + s * b @ a), bias)
    (expected,) = torch.autograd.grad(y, m, dy)

    times, columns, m = torch.empty(7, dtype=torch.float64), torch.empty_like(b), m.detach()
    met = 2 * s * w @ a.T + s * s * b @ (a @ a.T)
    MAGNITUDES.reference.renew_scale(met, b, w.square().sum(1), m, s, times=times, columns=columns)
    scaled = MAGNITUDES.reference.scale_rows(w, times, out=torch.empty_like(w))
    torch.testing.assert_close(functional.linear(x, scaled + columns @ a, bias), y.detach())
    dm = torch.ones(7, dtype=torch.float64)
    MAGNITUDES.reference.add_dots(dy, y.detach(), bias, m, out=dm)
    torch.testing.assert_close(dm, 1 + expected)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [28672, 2300])
def test_kernels_read_and_write_the_columns_that_they_are_given(columns):
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    dy, y = (draw(700, columns + 64, **options)[:, :columns] for _ in range(2))
    bias, m = draw(columns, **options), draw(columns, dtype=torch.float32, device="cuda").abs_()
    found = [MAGNITUDES.triton.add_dots(dy, y, bias, m, out=torch.zeros_like(m)) for _ in range(2)]
    exact = (dy.double() * (y.double() - bias.double())).sum(0) / m
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-4, atol=1e-4 * exact.abs().max().item())

    place, times = torch.full((700, columns + 64), float("nan"), **options), m[:700].clone()
    MAGNITUDES.triton.scale_rows(y, times, out=place[:, :columns])
    assert torch.equal(place[:, :columns], (y.float() * times[:, None]).bfloat16())
    assert place[:, columns:].isnan().all()
