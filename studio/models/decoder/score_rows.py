"""Scores of a reward model's rows, in place of log-probabilities, and their gradients.

    s = h . w in fp32        for L = sum_n c_n (-s_n):        dL/dh_n = -c_n w        dL/dw = -sum_n c_n h_n

h (N, H) rows behind the last norm, w (1, H) the score's weights, c what each row counts.
"""

from __future__ import annotations

import torch
from torch import Tensor


def score_rows(
    hidden: Tensor, weight: Tensor, scale: float | Tensor, weight_gradient: Tensor | None, *, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Return `scale`, () or (N,), times each minus score, (N,) fp32 at least, and the gradient (N, H) of `hidden`.

    Where `gradient` is asked for it is written over `hidden`, and that of `weight` added to `weight_gradient` (1, H).
    """
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    row = weight[0].to(wide.dtype)
    losses = -(wide @ row) * scale
    if not gradient:
        return losses, None
    counted = losses.new_empty(len(hidden)).copy_(torch.as_tensor(scale)).neg_()
    if weight_gradient is not None:
        weight_gradient.add_((counted @ wide)[None])
    return losses, hidden.copy_(counted[:, None] * row)
