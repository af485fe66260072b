"""The Triton kernels of RMS normalisation; formulas and calls are in `rms_norm`."""

from __future__ import annotations

from studio_kernels._triton import tl, triton
from studio_kernels.row_blocks import read_columns, read_rows, read_sum, write_rows


@triton.jit
def _write_result(
    s, r, x_pointer, weight_pointer, add_pointer, y_pointer, row, add_stride, y_stride, column, mask, column_mask,
    OFFSET: tl.constexpr, CAST_FIRST: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    weight = read_columns(weight_pointer, column, column_mask) + OFFSET
    normal = s * r[:, None]
    if CAST_FIRST:
        normal = normal.to(x_pointer.dtype.element_ty).to(tl.float32)
    y = normal * weight[None, :]
    if ADD:
        y = y.to(y_pointer.dtype.element_ty).to(tl.float32) + read_rows(
            add_pointer, row, add_stride, column, mask
        )
    write_rows(y_pointer, row, y_stride, column, mask, y)


@triton.jit(do_not_specialize=["rows"])
def _forward_kernel(
    x_pointer, residual_pointer, add_pointer, weight_pointer, y_pointer, s_pointer, r_pointer, rows, columns,
    x_stride, residual_stride, add_stride, y_stride, s_stride, EPS: tl.constexpr, OFFSET: tl.constexpr,
    CAST_FIRST: tl.constexpr, RESIDUAL: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TAIL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < rows
    column = tl.arange(0, COLUMNS)
    column_mask = column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    s = read_sum(
        x_pointer,
        residual_pointer,
        s_pointer,
        row,
        x_stride,
        residual_stride,
        s_stride,
        column,
        mask,
        RESIDUAL,
    )
    squares = tl.sum(s * s, axis=1)
    if TAIL:
        tail = COLUMNS + tl.arange(0, TAIL)
        tail_column_mask = tail < columns
        tail_mask = row_mask[:, None] & tail_column_mask[None, :]
        tail_s = read_sum(
            x_pointer,
            residual_pointer,
            s_pointer,
            row,
            x_stride,
            residual_stride,
            s_stride,
            tail,
            tail_mask,
            RESIDUAL,
        )
        squares += tl.sum(tail_s * tail_s, axis=1)
    r = tl.rsqrt(squares / columns + EPS)
    tl.store(r_pointer + row, r, mask=row_mask)
    _write_result(
        s, r, x_pointer, weight_pointer, add_pointer, y_pointer, row, add_stride, y_stride, column, mask, column_mask,
        OFFSET, CAST_FIRST, ADD,
    )  # fmt: skip
    if TAIL:
        _write_result(
            tail_s, r, x_pointer, weight_pointer, add_pointer, y_pointer, row, add_stride, y_stride, tail, tail_mask,
            tail_column_mask, OFFSET, CAST_FIRST, ADD,
        )  # fmt: skip


@triton.jit
def _write_gradient(
    u, normal, mean, r, ds_pointer, dx_pointer, row, ds_stride, dx_stride, column, mask, DS: tl.constexpr
):  # fmt: skip
    dx = r[:, None] * (u - normal * mean[:, None])
    if DS:
        dx += read_rows(ds_pointer, row, ds_stride, column, mask)
    write_rows(dx_pointer, row, dx_stride, column, mask, dx)


@triton.jit(do_not_specialize=["rows", "blocks"])
def _backward_kernel(
    dy_pointer, s_pointer, weight_pointer, r_pointer, ds_pointer, dx_pointer, partial_pointer, rows, columns,
    dy_stride, s_stride, ds_stride, dx_stride, blocks, OFFSET: tl.constexpr, DS: tl.constexpr,
    WEIGHT_GRADIENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    column_mask = column < columns
    weight = read_columns(weight_pointer, column, column_mask) + OFFSET
    partial = tl.zeros((COLUMNS,), dtype=tl.float32)
    if TAIL:
        tail = COLUMNS + tl.arange(0, TAIL)
        tail_column_mask = tail < columns
        tail_weight = read_columns(weight_pointer, tail, tail_column_mask) + OFFSET
        tail_partial = tl.zeros((TAIL,), dtype=tl.float32)
    for block in range(blocks):
        row = (program * blocks + block) * ROWS + tl.arange(0, ROWS)
        row_mask = row < rows
        mask = row_mask[:, None] & column_mask[None, :]
        r = tl.load(r_pointer + row, mask=row_mask, other=0.0)
        dy = read_rows(dy_pointer, row, dy_stride, column, mask)
        normal = read_rows(s_pointer, row, s_stride, column, mask) * r[:, None]
        u = dy * weight[None, :]
        along = tl.sum(u * normal, axis=1)
        if TAIL:
            tail_mask = row_mask[:, None] & tail_column_mask[None, :]
            tail_dy = read_rows(dy_pointer, row, dy_stride, tail, tail_mask)
            tail_normal = read_rows(s_pointer, row, s_stride, tail, tail_mask) * r[:, None]
            tail_u = tail_dy * tail_weight[None, :]
            along += tl.sum(tail_u * tail_normal, axis=1)
        mean = along / columns
        _write_gradient(
            u, normal, mean, r, ds_pointer, dx_pointer, row, ds_stride, dx_stride, column, mask, DS
        )
        if WEIGHT_GRADIENT:
            partial += tl.sum(dy * normal, axis=0)
        if TAIL:
            _write_gradient(
                tail_u,
                tail_normal,
                mean,
                r,
                ds_pointer,
                dx_pointer,
                row,
                ds_stride,
                dx_stride,
                tail,
                tail_mask,
                DS,
            )
            if WEIGHT_GRADIENT:
                tail_partial += tl.sum(tail_dy * tail_normal, axis=0)
    if WEIGHT_GRADIENT:
        tl.store(partial_pointer + program * columns + column, partial, mask=column_mask)
        if TAIL:
            tl.store(partial_pointer + program * columns + tail, tail_partial, mask=tail_column_mask)
