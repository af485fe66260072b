"""What kernels over whole rows share: reading and writing blocks of rows, and the sizes of such blocks."""

from __future__ import annotations

from studio_kernels._triton import tl, triton
from studio_kernels.row_layout import choose_spans

PARTIALS = 256
"""Programs that share the rows of a weight's gradient. A constant: the order of its sum depends on shapes alone."""
NARROW_PARTIALS = 1024
"""As many for rows of up to 1,024 elements, whose programs hold 4 warps: fewer would leave the GPU half empty."""


@triton.jit
def read_rows(pointer, row, stride, column, mask):
    """The block (rows, columns) in float32, 0 outside `mask`."""
    return tl.load(pointer + row[:, None] * stride + column[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def write_rows(pointer, row, stride, column, mask, values):
    """Round the block once and store it."""
    tl.store(
        pointer + row[:, None] * stride + column[None, :], values.to(pointer.dtype.element_ty), mask=mask
    )


@triton.jit
def read_columns(pointer, column, mask):
    """A vector that all rows share, in float32."""
    return tl.load(pointer + column, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def read_sum(x_pointer, residual_pointer, s_pointer, row, x_stride, residual_stride, s_stride, column, mask,
             RESIDUAL: tl.constexpr):  # fmt: skip
    """x, or x + residual rounded and stored as s, in float32."""
    s = read_rows(x_pointer, row, x_stride, column, mask)
    if RESIDUAL:
        s = (s + read_rows(residual_pointer, row, residual_stride, column, mask)).to(
            s_pointer.dtype.element_ty
        )
        write_rows(s_pointer, row, s_stride, column, mask, s)
    return s.to(tl.float32)


def block_shape(columns: int) -> dict[str, int]:
    """Rows and columns of one program's block (powers of two) and its warps, for rows of `columns` elements.

    A row lies in one block, or in two (COLUMNS and TAIL) where one would be idle for a quarter or more. Rows of 64 to
    512 elements (query and key norms) share a program, up to 2,048 elements together. A thread holds 16 of a row's
    elements, 32 of the widest.
    """
    first, tail = choose_spans(columns)
    rows = max(1, min(32, 2048 // first))
    return {"ROWS": rows, "COLUMNS": first, "TAIL": tail, "num_warps": max(4, min(16, first // 512))}


def share_rows(rows: int, columns: int, rows_block: int) -> tuple[int, int]:
    """(programs, blocks of each) for a kernel that sums over rows: as many partial sums as programs."""
    blocks = -(-rows // rows_block)
    most = NARROW_PARTIALS if columns <= 1024 else PARTIALS
    each = max(1, -(-blocks // most))
    return -(-blocks // each), each
