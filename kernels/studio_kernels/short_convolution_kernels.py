"""Kernels of the short convolution beside the gated delta rule: a tile of rows and columns in, and a tile back."""

from __future__ import annotations

from studio_kernels._triton import tl, triton


@triton.jit
def _mix(x_pointer, weight_pointer, row, position, column, known, inside, x_stride, TAPS: tl.constexpr,
         ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """z of a tile: each row and those before it in its document, times the taps of each column."""
    z = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for back in tl.static_range(TAPS):
        weight = tl.load(weight_pointer + column * TAPS + (TAPS - 1 - back), mask=inside, other=0.0)
        at = x_pointer + (row - back).to(tl.int64)[:, None] * x_stride + column[None, :]
        seen = (known & (position >= back))[:, None] & inside[None, :]
        z += tl.load(at, mask=seen, other=0.0).to(tl.float32) * weight.to(tl.float32)[None, :]
    return z


@triton.jit(do_not_specialize=["rows"])
def _convolve_kernel(
    x_pointer, weight_pointer, positions_pointer, out_pointer, rows, columns, x_stride,
    TAPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """silu(z)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known, inside = row < rows, column < columns
    position = tl.load(positions_pointer + row, mask=known, other=0)
    z = _mix(x_pointer, weight_pointer, row, position, column, known, inside, x_stride, TAPS, ROWS, COLUMNS)
    at = out_pointer + row.to(tl.int64)[:, None] * columns + column[None, :]
    out = z / (1.0 + tl.exp(-z))
    tl.store(at, out.to(out_pointer.dtype.element_ty), mask=known[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["rows"])
def _convolve_back_kernel(
    dout_pointer, x_pointer, weight_pointer, positions_pointer, dx_pointer, rows, columns, dout_stride, x_stride,
    TAPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dx; z is computed again, of each row and of those behind it that see it."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    dx = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for ahead in tl.static_range(TAPS):
        later = row + ahead
        position = tl.load(positions_pointer + later, mask=later < rows, other=-1)
        known = position >= ahead
        z = _mix(
            x_pointer, weight_pointer, later, position, column, known, inside, x_stride, TAPS, ROWS, COLUMNS
        )
        share = 1.0 / (1.0 + tl.exp(-z))
        at = dout_pointer + later.to(tl.int64)[:, None] * dout_stride + column[None, :]
        dz = tl.load(at, mask=known[:, None] & inside[None, :], other=0.0).to(tl.float32)
        dz *= share * (1.0 + z * (1.0 - share))
        weight = tl.load(weight_pointer + column * TAPS + (TAPS - 1 - ahead), mask=inside, other=0.0)
        dx += dz * weight.to(tl.float32)[None, :]
    at = dx_pointer + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(at, dx.to(dx_pointer.dtype.element_ty), mask=(row < rows)[:, None] & inside[None, :])
