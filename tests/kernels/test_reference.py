"""The PyTorch twins: their gradients against central differences in float64, their bits against transformers."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import rms_norm, swiglu

ORDERS = (rms_norm.CAST_THEN_SCALE, rms_norm.SCALE_THEN_CAST)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("offset", [0, 1])
def test_rms_norm_gradient(offset, order):
    x, weight = draw(3, 5), draw(5, seed=1)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm.reference(x, w, 1e-6, offset, order), (x, weight))


def test_swiglu_gradient():
    assert torch.autograd.gradcheck(swiglu.reference, (draw(3, 5), draw(3, 5, seed=1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rms_norm_equals_transformers_bit_for_bit(dtype):
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, weight = draw(7, 96, dtype=torch.float32).to(dtype), draw(96, seed=1).to(dtype)
    settings = {LlamaRMSNorm: (0, ORDERS[0]), Gemma3RMSNorm: (1, ORDERS[1])}
    for stock_class, (offset, order) in settings.items():
        stock = torch.func.functional_call(stock_class(96, eps=1e-5), {"weight": weight}, (x,))
        assert torch.equal(rms_norm.reference(x, weight, 1e-5, offset, order), stock)
    wrong = rms_norm.reference(x, weight, 1e-5, 0, ORDERS[1])
    right = rms_norm.reference(x, weight, 1e-5, 0, ORDERS[0])
    assert torch.equal(wrong, right) == (dtype == torch.float32)


def test_wide_rows_stay_exact_in_float64():
    x = draw(2, 8)
    exact = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(rms_norm.reference(x, torch.ones(8).double(), 1e-6), exact, rtol=1e-14, atol=0)
