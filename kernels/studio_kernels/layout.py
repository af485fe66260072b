"""How kernels see tensors: rows of unit-stride columns, whatever the shape."""

from __future__ import annotations

from torch import Tensor


def as_rows(x: Tensor) -> Tensor:
    """`x` (..., H) as (T, H) with stride 1 in the columns; copies only where no such view exists.

    Expanded tensors (every stride 0, as `y.sum().backward()` sends them) are copied: a kernel that took their
    strides for granted would read past their storage.
    """
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
