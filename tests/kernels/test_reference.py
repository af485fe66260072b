"""The PyTorch twins: composed forms against central differences, plain functions against autograd and transformers."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import glu, layer_norm, rms_norm, row_layout

ORDERS = (rms_norm.CAST_THEN_SCALE, rms_norm.SCALE_THEN_CAST)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


def assert_equal(ours, theirs) -> None:
    """To the last but a few of float64's digits."""
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("offset", [0, 1])
def test_rms_norm_gradient(offset, order):
    x, weight = draw(3, 5), draw(5, seed=1)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm.compose(x, w, 1e-6, offset, order), (x, weight))


@pytest.mark.parametrize("kind", glu.KINDS)
def test_glu_gradient(kind):
    assert torch.autograd.gradcheck(lambda g, u: glu.compose(g, u, kind), (draw(3, 5), draw(3, 5, seed=1)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("adds", [False, True])
def test_rms_norm_by_hand_equals_autograd(offset, order, adds):
    """A residual before, an add after, and a stream that goes on: s is used twice."""
    x, residual, add, dy, ds = (draw(4, 6, seed=seed) for seed in range(5))
    weight = draw(6, seed=9)
    if not adds:
        residual, add, ds = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    stream = x + residual
    y = rms_norm.compose(stream, weight, 1e-6, offset, order) + add
    dx, dw = torch.autograd.grad([y, stream], [x, weight], [dy, ds])
    with torch.no_grad():
        given = {"residual": residual, "add": add} if adds else {}
        ours, s, r = rms_norm.reference_forward(x, weight, 1e-6, offset, order, **given)
        total = torch.full_like(weight, 2.0)
        rest = {"ds": ds} if adds else {}
        gradient = rms_norm.reference_backward(dy, s, weight, r, offset, weight_gradient=total, **rest)
    assert_equal(ours, y)
    assert_equal(gradient, dx)
    assert_equal(total, dw + 2)
    assert (s is x) is not adds


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_by_hand_equals_autograd(bias):
    x, residual, dy, ds = (draw(4, 6, seed=seed) for seed in range(4))
    weight, shift = draw(6, seed=8), draw(6, seed=9) if bias else None
    stream = x + residual
    y = layer_norm.compose(stream, weight, shift, 1e-5)
    dx, dw, *db = torch.autograd.grad([y, stream], [x, weight, *([shift] if bias else [])], [dy, ds])
    with torch.no_grad():
        ours, s, mean, r = layer_norm.reference_forward(x, weight, shift, 1e-5, residual=residual)
        totals = torch.ones(2, 6, dtype=torch.float64)
        gradient = layer_norm.reference_backward(
            dy, s, weight, mean, r, ds=ds, weight_gradient=totals[0], bias_gradient=totals[1]
        )
    assert_equal(ours, y)
    assert_equal(gradient, dx)
    assert_equal(totals[0], dw + 1)
    assert not bias or torch.allclose(totals[1], db[0] + 1, rtol=1e-12)


@pytest.mark.parametrize("kind", glu.KINDS)
def test_glu_by_hand_equals_autograd(kind):
    gate, up, dh = (draw(4, 6, seed=seed) for seed in range(3))
    h = glu.compose(gate, up, kind)
    expected = torch.autograd.grad(h, (gate, up), dh)
    with torch.no_grad():
        assert_equal(glu.reference_forward(gate, up, kind), h)
        dgate, dup, again = glu.reference_backward(dh, gate, up, kind, h=torch.empty_like(h))
    assert_equal((dgate, dup), expected)
    assert_equal(again, h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("module", [rms_norm, layer_norm])
def test_a_gradient_may_be_written_over_what_came_from_above(module, dtype):
    """And what is only read stays as it was: in float32 a conversion is no copy."""
    s, dy, ds = (draw(4, 6, dtype=torch.float32, seed=seed).detach().to(dtype) for seed in range(3))
    weight, mean, r = torch.ones(6), torch.zeros(4), torch.ones(4)
    statistics = (r,) if module is rms_norm else (mean, r)
    for target in (dy, ds):
        before, total = (s.clone(), dy.clone(), ds.clone()), torch.zeros(6)
        expected = module.reference_backward(dy, s, weight, *statistics, ds=ds, weight_gradient=total)
        assert all(map(torch.equal, (s, dy, ds), before))
        assert module.reference_backward(dy, s, weight, *statistics, ds=ds, out=target) is target
        assert torch.equal(target, expected)


def test_gradients_of_a_gate_may_lie_over_it():
    dh, gate, up = (draw(4, 6, seed=seed).detach() for seed in range(3))
    expected = glu.reference_backward(dh, gate, up, h=torch.empty_like(dh))
    over = glu.reference_backward(dh, gate, up, dgate=gate, dup=up, h=dh)
    assert over[0] is gate and over[1] is up and over[2] is dh
    assert all(map(torch.equal, over, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rms_norm_equals_transformers_bit_for_bit(dtype):
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, weight = draw(7, 96, dtype=torch.float32).to(dtype), draw(96, seed=1).to(dtype)
    settings = {LlamaRMSNorm: (0, ORDERS[0]), Gemma3RMSNorm: (1, ORDERS[1])}
    for stock_class, (offset, order) in settings.items():
        stock = torch.func.functional_call(stock_class(96, eps=1e-5), {"weight": weight}, (x,))
        assert torch.equal(rms_norm.compose(x, weight, 1e-5, offset, order), stock)
    wrong = rms_norm.compose(x, weight, 1e-5, 0, ORDERS[1])
    right = rms_norm.compose(x, weight, 1e-5, 0, ORDERS[0])
    assert torch.equal(wrong, right) == (dtype == torch.float32)


def test_wide_rows_stay_exact_in_float64():
    x = draw(2, 8)
    exact = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(rms_norm.compose(x, torch.ones(8).double(), 1e-6), exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "columns", [1, 64, 100, 1024, 1025, 2304, 2560, 3072, 3584, 5120, 8192, 12288, 14336, 16384]
)
def test_spans_cover_a_row_and_leave_little_idle(columns):
    first, tail = row_layout.choose_spans(columns)
    assert first & (first - 1) == 0 and tail & (tail - 1) == 0 and tail < first
    assert columns <= first + tail and (columns > first or tail == 0)
    assert columns < 1024 or columns >= 0.75 * (first + tail)
