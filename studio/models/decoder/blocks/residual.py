"""How a branch leaves the residual stream and joins it again: n = norm(x), or x itself, and y = x + m norm(b).

Most branches have a norm of their own at one end alone, and m is 1: then the sum is taken by the matrix product that
gives b, so nothing is left to be done here. A norm at the end is Gemma's and OLMo 2's, another m Granite's.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor, add, empty_like, mul

from studio.models.decoder.blocks.block import StreamRows
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.norm_probe import Norm


def leave(norm: Norm | None, x: Tensor, group: LinearGroup, kernels: Kernels) -> tuple[Tensor, Tensor | None]:
    """Return wide rows for `group` that hold n beside a free tail, and the norm's 1/rms (T,), None without a norm."""
    wide = group.widen(x.shape[0])
    place = wide[:, : x.shape[1]]
    if norm is None:
        place.copy_(x)
        return wide, None
    return wide, kernels.rms_norm.forward(x, norm.weight, *norm.options, out=place)[2]


def normalise(norm: Norm | None, x: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor | None]:
    """Return n (T, H) as rows of their own, `x` itself without a norm, and the norm's 1/rms (T,), None without one."""
    if norm is None:
        return x, None
    n, _, r = kernels.rms_norm.forward(x, norm.weight, *norm.options, out=empty_like(x))
    return n, r


def leave_backward(
    norm: Norm | None, dn: Tensor, x: Tensor, r: Tensor | None, dy: Tensor, gradient: Tensor | None,
    kernels: Kernels, out: Tensor,
) -> None:  # fmt: skip
    """Write dx (T, H) to `out`: what comes back through n, and the stream's own `dy`; adds the norm's to `gradient`."""
    if norm is None:
        add(dn, dy, out=out)
        return
    kernels.rms_norm.backward(dn, x, norm.weight, r, norm.offset, ds=dy, out=out, weight_gradient=gradient)


def joins_apart(norm: Norm | None, scale: float) -> bool:
    """Return whether a branch is added by join(), and not by its product."""
    return norm is not None or scale != 1.0


def join(
    norm: Norm | None, scale: float, branch: Tensor, stream: Tensor, kernels: Kernels, *, keep: bool = False
) -> Tensor:
    """Return stream + norm(branch), or stream + scale branch, which takes the branch's place unless `keep`; (T, H)."""
    if norm is None:
        return add(stream, branch, alpha=scale, out=None if keep else branch)
    out = empty_like(branch)  # in its own dtype, also where the norm's weight is fp32
    return kernels.rms_norm.forward(branch, norm.weight, *norm.options, add=stream, out=out)[0]


def join_backward(
    norm: Norm | None, scale: float, dy: Tensor, branch: Tensor | None, group: LinearGroup | StreamRows,
    gradient: Tensor | None, kernels: Kernels,
) -> Tensor:  # fmt: skip
    """Return the gradient of `branch`, wide for `group`, whose result it is; adds the norm's to `gradient`."""
    hidden = group.outputs
    dbranch = group.widen_gradient(dy.shape[0])
    if norm is None:
        mul(dy[:, :hidden], scale, out=dbranch[:, :hidden])
        return dbranch
    _, _, r = kernels.rms_norm.forward(branch, norm.weight, *norm.options)
    kernels.rms_norm.backward(
        dy[:, :hidden], branch, norm.weight, r, norm.offset, out=dbranch[:, :hidden], weight_gradient=gradient
    )
    return dbranch
