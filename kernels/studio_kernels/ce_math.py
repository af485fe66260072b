"""The loss of one label beside its rivals, and how strongly it pulls at each logit.

    o = log sum_{j != y} exp z_j        d = o - z_y        loss = softplus(d)
    dloss / dz_j = exp(z_j - o) sigmoid(d)  (j != y)       dloss / dz_y = -sigmoid(d)

y the label. It is left out of the sum o: a token that the model is sure of has d << 0, where log sum_j exp z_j - z_y
and p_y - 1 would be differences of nearly equal numbers; softplus(d) and -sigmoid(d) keep every digit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from studio_kernels._triton import tl, triton

IGNORE = -100
"""The label of a row that does not count, as torch and transformers have it."""
LOWEST = -1e30
"""Below every logit, and finite: the difference of two of it is 0, not NaN."""


def weigh(others: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and sigmoid(d) (N,) of each row, of o and z_y (N,)."""
    distance = others - label
    return torch.logaddexp(distance, torch.zeros_like(distance)), torch.sigmoid(distance)


def spread(scale: float | Tensor, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`scale`, a number, () or (N,), as (N,) in `dtype` on `device`: of stride 0 where all rows have the same."""
    if not isinstance(scale, Tensor):
        # Not torch.tensor: that copies from the processor's memory, and waits.
        scale = torch.full((), scale, dtype=dtype, device=device)
    return scale.to(dtype).expand(rows)


def processors_of(device: torch.device) -> int:
    """Multiprocessors of the GPU, which PyTorch keeps and does not ask the device for; 8 for anything else."""
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def cap(q, SOFTCAP: tl.constexpr):
    """SOFTCAP tanh(q / SOFTCAP), or q where there is none; tanh(x) = (1 - e) / (1 + e) with e = exp(-2 x), x >= 0."""
    if SOFTCAP > 0.0:
        e = tl.exp(-2.0 * tl.abs(q) / SOFTCAP)
        capped = SOFTCAP * (1.0 - e) / (1.0 + e)
        q = tl.where(q < 0.0, -capped, capped)
    return q


@triton.jit
def weigh_row(others, label):
    """`weigh`, in float32."""
    distance = others - label
    e = tl.exp(-tl.abs(distance))
    more = 1.0 + e
    # log(1 + e) as exact as e itself: what 1 + e lost in rounding is put right by e / (more - 1).
    log1p = tl.where(more == 1.0, e, tl.log(more) * (e / (more - 1.0)))
    return tl.maximum(distance, 0.0) + log1p, tl.where(distance >= 0.0, 1.0, e) / more
