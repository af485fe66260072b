"""The Triton kernels of layer normalisation; formulas and calls are in `layer_norm`."""

from __future__ import annotations

from studio_kernels._triton import tl, triton
from studio_kernels.row_blocks import read_columns, read_rows, read_sum, write_rows


@triton.jit
def _write_result(
    centred, r, weight_pointer, bias_pointer, y_pointer, row, y_stride, column, mask, column_mask, BIAS: tl.constexpr
):  # fmt: skip
    y = centred * r[:, None] * read_columns(weight_pointer, column, column_mask)[None, :]
    if BIAS:
        y += read_columns(bias_pointer, column, column_mask)[None, :]
    write_rows(y_pointer, row, y_stride, column, mask, y)


@triton.jit(do_not_specialize=["rows"])
def _forward_kernel(
    x_pointer, residual_pointer, weight_pointer, bias_pointer, y_pointer, s_pointer, mean_pointer, r_pointer, rows,
    columns, x_stride, residual_stride, y_stride, s_stride, EPS: tl.constexpr, RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TAIL: tl.constexpr,
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
    total = tl.sum(s, axis=1)
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
        total += tl.sum(tail_s, axis=1)
    mean = total / columns
    # The mean first and the squares of what is left: the row is in registers, and nothing cancels.
    centred = tl.where(column_mask[None, :], s - mean[:, None], 0.0)
    squares = tl.sum(centred * centred, axis=1)
    if TAIL:
        tail_centred = tl.where(tail_column_mask[None, :], tail_s - mean[:, None], 0.0)
        squares += tl.sum(tail_centred * tail_centred, axis=1)
    r = tl.rsqrt(squares / columns + EPS)
    tl.store(mean_pointer + row, mean, mask=row_mask)
    tl.store(r_pointer + row, r, mask=row_mask)
    _write_result(
        centred, r, weight_pointer, bias_pointer, y_pointer, row, y_stride, column, mask, column_mask, BIAS
    )
    if TAIL:
        _write_result(
            tail_centred, r, weight_pointer, bias_pointer, y_pointer, row, y_stride, tail, tail_mask, tail_column_mask,
            BIAS,
        )  # fmt: skip


@triton.jit
def _read_normal(s_pointer, row, s_stride, column, mask, mean, r):
    return tl.where(
        mask, (read_rows(s_pointer, row, s_stride, column, mask) - mean[:, None]) * r[:, None], 0.0
    )


@triton.jit
def _write_gradient(
    u, normal, mean_u, mean_un, r, ds_pointer, dx_pointer, row, ds_stride, dx_stride, column, mask, DS: tl.constexpr
):  # fmt: skip
    dx = r[:, None] * (u - mean_u[:, None] - normal * mean_un[:, None])
    if DS:
        dx += read_rows(ds_pointer, row, ds_stride, column, mask)
    write_rows(dx_pointer, row, dx_stride, column, mask, dx)


@triton.jit(do_not_specialize=["rows", "blocks"])
def _backward_kernel(
    dy_pointer, s_pointer, weight_pointer, mean_pointer, r_pointer, ds_pointer, dx_pointer, weight_partial_pointer,
    bias_partial_pointer, rows, columns, dy_stride, s_stride, ds_stride, dx_stride, blocks, DS: tl.constexpr,
    GRADIENTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    column_mask = column < columns
    weight = read_columns(weight_pointer, column, column_mask)
    weight_partial = tl.zeros((COLUMNS,), dtype=tl.float32)
    bias_partial = tl.zeros((COLUMNS,), dtype=tl.float32)
    if TAIL:
        tail = COLUMNS + tl.arange(0, TAIL)
        tail_column_mask = tail < columns
        tail_weight = read_columns(weight_pointer, tail, tail_column_mask)
        tail_weight_partial = tl.zeros((TAIL,), dtype=tl.float32)
        tail_bias_partial = tl.zeros((TAIL,), dtype=tl.float32)
    for block in range(blocks):
        row = (program * blocks + block) * ROWS + tl.arange(0, ROWS)
        row_mask = row < rows
        mask = row_mask[:, None] & column_mask[None, :]
        mean = tl.load(mean_pointer + row, mask=row_mask, other=0.0)
        r = tl.load(r_pointer + row, mask=row_mask, other=0.0)
        dy = read_rows(dy_pointer, row, dy_stride, column, mask)
        normal = _read_normal(s_pointer, row, s_stride, column, mask, mean, r)
        u = dy * weight[None, :]
        total_u = tl.sum(u, axis=1)
        total_un = tl.sum(u * normal, axis=1)
        if TAIL:
            tail_mask = row_mask[:, None] & tail_column_mask[None, :]
            tail_dy = read_rows(dy_pointer, row, dy_stride, tail, tail_mask)
            tail_normal = _read_normal(s_pointer, row, s_stride, tail, tail_mask, mean, r)
            tail_u = tail_dy * tail_weight[None, :]
            total_u += tl.sum(tail_u, axis=1)
            total_un += tl.sum(tail_u * tail_normal, axis=1)
        mean_u = total_u / columns
        mean_un = total_un / columns
        _write_gradient(
            u, normal, mean_u, mean_un, r, ds_pointer, dx_pointer, row, ds_stride, dx_stride, column, mask, DS
        )
        if GRADIENTS:
            weight_partial += tl.sum(dy * normal, axis=0)
            bias_partial += tl.sum(dy, axis=0)
        if TAIL:
            _write_gradient(
                tail_u, tail_normal, mean_u, mean_un, r, ds_pointer, dx_pointer, row, ds_stride, dx_stride, tail,
                tail_mask, DS,
            )  # fmt: skip
            if GRADIENTS:
                tail_weight_partial += tl.sum(tail_dy * tail_normal, axis=0)
                tail_bias_partial += tl.sum(tail_dy, axis=0)
    if GRADIENTS:
        at = program * columns
        tl.store(weight_partial_pointer + at + column, weight_partial, mask=column_mask)
        tl.store(bias_partial_pointer + at + column, bias_partial, mask=column_mask)
        if TAIL:
            tl.store(weight_partial_pointer + at + tail, tail_weight_partial, mask=tail_column_mask)
            tl.store(bias_partial_pointer + at + tail, tail_bias_partial, mask=tail_column_mask)
