"""How kernels see tensors: rows of unit-stride columns, whatever the shape, in blocks of powers of two."""

from __future__ import annotations

from torch import Tensor


def as_rows(x: Tensor) -> Tensor:
    """`x` (..., H) as (T, H) with stride 1 in the columns; copies only where no such view exists.

    Expanded tensors (every stride 0, as `y.sum().backward()` sends them) are copied: a kernel that took their
    strides for granted would read past their storage.
    """
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def choose_spans(columns: int) -> tuple[int, int]:
    """Powers of two that cover `columns` together, the second may be 0: a kernel's blocks have no other lengths.

    One block for 5,120 columns would be 8,192 wide, 37 % of it idle; 4,096 and 1,024 fit. At most a quarter is idle.
    """
    whole = max(16, 1 << (columns - 1).bit_length())
    first = whole // 2
    rest = max(16, 1 << (columns - first - 1).bit_length()) if columns > first else whole
    return (whole, 0) if columns < 1024 or rest >= first else (first, rest)
