"""Norms of query and key that the rotation's op does not take along: over all heads at once, or after the rotation.

Not fused: each is a pass of its own over query and key, forward and backward.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.norm_probe import Norm


def normalise_heads(x: Tensor, norm: Norm, kernels: Kernels, out: Tensor) -> None:
    """Write norm(x) to `out`, both (T, heads d) of any row stride, in as many parts as the norm's width asks for."""
    width = norm.weight.numel()
    if x.shape[1] == width:
        kernels.rms_norm.forward(x, norm.weight, *norm.options, out=out)
        return
    rows = x.reshape(-1, width)
    y, _, _ = kernels.rms_norm.forward(rows, norm.weight, *norm.options, out=rows.new_empty(rows.shape))
    out.copy_(y.view(x.shape))


def normalise_heads_backward(
    dy: Tensor, x: Tensor, norm: Norm, kernels: Kernels, gradient: Tensor | None
) -> Tensor:
    """Return dx (T, heads, d) of dy, (T, heads, d) or (T, heads d), and x (T, heads d); adds dw to `gradient`."""
    width = norm.weight.numel()
    rows, upstream = x.reshape(-1, width), dy.reshape(-1, width)
    _, _, r = kernels.rms_norm.forward(rows, norm.weight, *norm.options)
    dx = kernels.rms_norm.backward(
        upstream, rows, norm.weight, r, norm.offset, out=rows.new_empty(rows.shape), weight_gradient=gradient
    )
    return dx.view(dy.shape)
