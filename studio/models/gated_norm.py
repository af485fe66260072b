"""The norm behind a state space, of rows that are gated first, with a backward pass by hand.

    g = x silu(z)        r = 1 / sqrt(mean g^2 + eps) of each group of columns        n = r g        y = w n

    dn = w dy            dg = r (dn - n mean(dn n))            dx = dg silu(z)        dz = dg x silu'(z)

Nothing but x and z is kept; transformers' own code holds five more tensors of their size in fp32. T rows, I columns in
groups of `group`. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

TRIED_ROWS = 3
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of tried rows' largest number: several roundings, and far below a gate behind the norm."""


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, eps: float, group: int) -> Tensor:
        ctx.save_for_backward(x, gate, weight)
        ctx.options = eps, group
        return weight * _compute(x, gate, eps, group)[0].to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, weight = ctx.saved_tensors
        n, r, share, open_ = _compute(x, gate, *ctx.options)
        dweight = (dy * n).flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[2] else None
        dn = (dy.to(n.dtype) * weight).unflatten(-1, (-1, ctx.options[1]))
        n = n.view(dn.shape)
        dg = ((dn - n * (dn * n).mean(-1, keepdim=True)) * r).flatten(-2)
        wide = gate.to(n.dtype)
        dgate = dg * x * share * (1 + wide * (1 - share))
        return (dg * open_).to(x.dtype), dgate.to(gate.dtype), dweight, None, None


def _compute(x: Tensor, gate: Tensor, eps: float, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return n (..., I), r (..., groups, 1), sigma(z) and silu(z), in float32 or wider."""
    wide = gate.to(torch.promote_types(torch.promote_types(x.dtype, gate.dtype), torch.float32))
    share = torch.sigmoid(wide)
    open_ = wide * share
    g = (x * open_).unflatten(-1, (-1, group))
    r = torch.rsqrt(g.square().mean(-1, keepdim=True) + eps)
    return (g * r).flatten(-2), r, share, open_


class GatedFirst(nn.Module):
    """Computes what `norm` does, and shows what a mixer's code asks of it."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    @property
    def weight(self) -> Tensor:
        """(I,)"""
        return self.norm.weight

    @property
    def variance_epsilon(self) -> float:
        """See the file's eps."""
        return self.norm.variance_epsilon

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """Return y (..., I) of x and z (..., I)."""
        eps, group = _read_options(self.norm)
        return _Norm.apply(hidden_states, gate, self.norm.weight, eps, group)


def _read_options(norm: nn.Module) -> tuple[float, int]:
    return norm.variance_epsilon, int(getattr(norm, "group_size", 0) or norm.weight.numel())


@torch.no_grad()
def gates_first(norm: nn.Module) -> bool:
    """Return whether `norm` computes what GatedFirst does, by trying."""
    if list(inspect.signature(type(norm).forward).parameters)[1:] != ["hidden_states", "gate"]:
        return False
    weight = norm._parameters.get("weight")
    if weight is None or weight.is_meta or not isinstance(getattr(norm, "variance_epsilon", None), float):
        return False
    if weight.numel() % _read_options(norm)[1]:
        return False
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn(2, 1, TRIED_ROWS, weight.numel(), generator=generator).to(weight.device)
    theirs, ours = norm(x, gate).double(), GatedFirst(norm)(x, gate).double()
    return bool((theirs - ours).abs().max() <= TOLERANCE[weight.dtype] * theirs.abs().max())
