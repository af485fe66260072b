"""How a branch joins the residual stream: y = x + b, or, with a norm of its own (Gemma), y = x + norm(b).

Without a norm the sum is taken by the matrix product that gives b, so nothing is left to be done here.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor, empty_like

from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.norm_probe import Norm


def join(norm: Norm, branch: Tensor, stream: Tensor, kernels: Kernels) -> Tensor:
    """Return stream + norm(branch), (T, H)."""
    out = empty_like(branch)  # in its own dtype, also where the norm's weight is fp32
    return kernels.rms_norm.forward(branch, norm.weight, *norm.options, add=stream, out=out)[0]


def join_backward(
    norm: Norm, dy: Tensor, branch: Tensor, group: LinearGroup, gradient: Tensor | None, kernels: Kernels
) -> Tensor:
    """Return the gradient of `branch`, wide for `group`, whose result it is; adds the norm's to `gradient`."""
    hidden = branch.shape[1]
    _, _, r = kernels.rms_norm.forward(branch, norm.weight, *norm.options)
    dbranch = group.widen_gradient(branch.shape[0])
    kernels.rms_norm.backward(
        dy[:, :hidden], branch, norm.weight, r, norm.offset, out=dbranch[:, :hidden], weight_gradient=gradient
    )
    return dbranch
