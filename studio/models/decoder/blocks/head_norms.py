"""Norms of heads that the rotation's op does not take along: over all heads at once, after the rotation, of values.

Not fused: each is a pass of its own over its heads, forward and backward.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.norm_probe import Norm, PlainNorm


def normalise_heads(x: Tensor, norm: Norm | PlainNorm, kernels: Kernels, out: Tensor) -> None:
    """Write norm(x) to `out`, both (T, heads d) of any row stride, in as many parts as the norm's width asks for."""
    width = norm.weight.numel()
    if x.shape[1] == width:
        kernels.rms_norm.forward(x, norm.weight, *norm.options, out=out)
        return
    rows = x.reshape(-1, width)
    place = out.view(-1, width) if out.is_contiguous() else rows.new_empty(rows.shape)
    kernels.rms_norm.forward(rows, norm.weight, *norm.options, out=place)
    if not out.is_contiguous():
        out.copy_(place.view(x.shape))


def normalise_heads_backward(
    dy: Tensor, x: Tensor, norm: Norm | PlainNorm, kernels: Kernels, gradient: Tensor | None
) -> Tensor:
    """Return dx (T, heads, d) of dy, (T, heads, d) or (T, heads d), and x (T, heads d); adds dw to `gradient`."""
    width = norm.weight.numel()
    rows, upstream = x.reshape(-1, width), dy.reshape(-1, width)
    _, _, r = kernels.rms_norm.forward(rows, norm.weight, *norm.options)
    dx = kernels.rms_norm.backward(
        upstream, rows, norm.weight, r, norm.offset, out=rows.new_empty(rows.shape), weight_gradient=gradient
    )
    return dx.view(dy.shape)
