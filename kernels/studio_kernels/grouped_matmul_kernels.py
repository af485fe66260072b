"""Kernels of `grouped_matmul`: a tile of rows of one expert times its matrix, and an expert's sum of outer products."""

from __future__ import annotations

from studio_kernels._triton import tl, triton


@triton.jit(do_not_specialize=["tiles", "low", "high"])
def _product_kernel(
    x_pointer, weight_pointer, u_pointer, b_pointer, y_pointer, tiles_pointer, tiles, low, high, inputs, outputs, rank,
    scale, x_stride, expert_stride, row_stride, column_stride, u_stride, b_expert_stride, b_row_stride,
    b_column_stride, y_stride,
    RANKS: tl.constexpr, WIDE: tl.constexpr, WHOLE_STEPS: tl.constexpr, FULL_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one expert, of those from `low` to `high`, times a tile of the rows of its matrix.

    TOGETHER tiles of rows meet the same columns before the next ones: both are read from the L2 cache then.
    """
    columns = tl.cdiv(outputs, COLUMNS)
    first_tile = tl.program_id(0) // (TOGETHER * columns) * TOGETHER
    size = min(tiles - first_tile, TOGETHER)
    place = tl.program_id(0) % (TOGETHER * columns)
    entry = tiles_pointer + (first_tile + place % size) * 3
    expert = tl.load(entry)
    first, end = tl.load(entry + 1), tl.load(entry + 2)
    if (first >= end) | (expert < low) | (expert >= high):
        return
    row, left = first + tl.arange(0, ROWS), place // size * COLUMNS
    # In the place of rows and columns behind the last one that one is read again, and not written: a mask in the loop
    # costs more (0.80 for 0.45 ms, 32,768 rows, 128 experts of 1,536 x 2,048 on an H200).
    near_row = tl.minimum(row, end - 1).to(tl.int64)
    if FULL_COLUMNS:
        # The last tile begins earlier where it would not be full, and gives what it shares with the one before once
        # more. Columns that were told apart are read one by one where they are neighbours in memory: gpt-oss's
        # experts, 5,760 x 2,880 in 64 loads of 2 bytes a step in the place of 8 of 16 bytes.
        left = tl.multiple_of(tl.minimum(left, outputs - COLUMNS), FULL_COLUMNS)
    column = left + tl.arange(0, COLUMNS)
    near_column = (column if FULL_COLUMNS else tl.minimum(column, outputs - 1)).to(tl.int64)
    x_at = x_pointer + near_row[:, None] * x_stride
    weight_at = near_column[None, :] * row_stride + (expert - low).to(tl.int64) * expert_stride
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, inputs, INNER):
        inner = start + tl.arange(0, INNER)
        at = weight_at + inner[:, None] * column_stride
        if WHOLE_STEPS:
            x = tl.load(x_at + inner[None, :])
            weight = tl.load(weight_pointer + at)
        else:
            x = tl.load(x_at + inner[None, :], mask=(inner < inputs)[None, :], other=0.0)
            weight = tl.load(weight_pointer + at, mask=(inner < inputs)[:, None], other=0.0)
        if WIDE:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        total = tl.dot(x, weight, total)
    total *= scale
    if RANKS:
        rung = tl.arange(0, RANKS)
        u = tl.load(
            u_pointer + near_row[:, None] * u_stride + rung[None, :], mask=(rung < rank)[None, :], other=0.0
        )
        b_at = rung[:, None] * b_column_stride + near_column[None, :] * b_row_stride
        b_at += expert.to(tl.int64) * b_expert_stride
        b = tl.load(b_pointer + b_at, mask=(rung < rank)[:, None], other=0.0)
        if WIDE:
            u, b = u.to(tl.float32), b.to(tl.float32)
        total = tl.dot(u, b, total)
    mask = (row < end)[:, None] & (column < outputs)[None, :]
    y_at = y_pointer + row.to(tl.int64)[:, None] * y_stride + column[None, :]
    tl.store(y_at, total.to(y_pointer.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_kernel(
    p_pointer, q_pointer, offsets_pointer, out_pointer, p_columns, q_columns, p_stride, q_stride, expert_stride,
    row_stride, column_stride,
    WIDE: tl.constexpr, ROWS: tl.constexpr, P_COLUMNS: tl.constexpr, Q_COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of one expert's D: all its rows, one tile of rows after the other."""
    expert = tl.program_id(0)
    first, end = tl.load(offsets_pointer + expert), tl.load(offsets_pointer + expert + 1)
    if first >= end:
        return
    p_column = tl.program_id(1) * P_COLUMNS + tl.arange(0, P_COLUMNS)
    q_column = tl.program_id(2) * Q_COLUMNS + tl.arange(0, Q_COLUMNS)
    total = tl.zeros((P_COLUMNS, Q_COLUMNS), dtype=tl.float32)
    for start in range(first, end, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = row < end
        p_mask = inside[:, None] & (p_column < p_columns)[None, :]
        p = tl.load(p_pointer + row[:, None] * p_stride + p_column[None, :], mask=p_mask, other=0.0)
        q_mask = inside[:, None] & (q_column < q_columns)[None, :]
        q = tl.load(q_pointer + row[:, None] * q_stride + q_column[None, :], mask=q_mask, other=0.0)
        if WIDE:
            p, q = p.to(tl.float32), q.to(tl.float32)
        total = tl.dot(tl.trans(p), q, total)
    at = (
        expert.to(tl.int64) * expert_stride + p_column[:, None].to(tl.int64) * row_stride
        + q_column[None, :].to(tl.int64) * column_stride
    )  # fmt: skip
    mask = (p_column < p_columns)[:, None] & (q_column < q_columns)[None, :]
    tl.store(out_pointer + at, tl.load(out_pointer + at, mask=mask, other=0.0) + total, mask=mask)
