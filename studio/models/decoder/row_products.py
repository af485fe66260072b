"""Rows by one weight of their own dtype, by whichever of PyTorch's products is the fastest there."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

MOST_TURNED = 4
"""Rows for which W X^T is the fastest product of fp32 on a processor."""


def multiply_rows(x: Tensor, weight: Tensor, out: Tensor, add: Tensor | None = None) -> Tensor:
    """Write X W^T (+ `add`, (T, out) or (out,)) of rows X (T, in) and W (out, in) to `out`; returns it.

    A processor reads fp32 weights at its memory's speed by W X^T for 2 to 4 rows (43 GB/s on two cores of an EPYC with
    AVX-512, where X W^T by MKL reads 17 for one row and 12 for four), by oneDNN's product for one (39), and with oneDNN
    it multiplies more rows twice as fast as with MKL. In 16 bits X W^T is oneDNN's already, and W X^T would be summed
    in 16 bits, which is wrong.
    """
    if x.device.type == "cpu" and x.dtype == torch.float32:
        y = None
        if 1 < x.shape[0] <= MOST_TURNED:
            y = torch.mm(weight, x.T).T
        elif _has_onednn():
            y = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        if y is not None:
            return out.copy_(y) if add is None else torch.add(y, add, out=out)
    return torch.mm(x, weight.T, out=out) if add is None else torch.addmm(add, x, weight.T, out=out)


@cache
def _has_onednn() -> bool:
    """Return whether oneDNN's product of fp32 can be had: by an operation that PyTorch has for its own compiler."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
