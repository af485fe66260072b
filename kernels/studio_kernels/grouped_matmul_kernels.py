"""Kernels of `grouped_matmul`: a tile of rows of one expert times its matrix, and an expert's sum of outer products."""

from __future__ import annotations

from studio_kernels._triton import tl, triton
from studio_kernels.nf4 import _scale


@triton.jit
def _decode_tile(
    at, mask, packed_pointer, absmax_pointer, code_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
    NESTED: tl.constexpr, BLOCK_BITS: tl.constexpr, NESTED_BITS: tl.constexpr,
):  # fmt: skip
    """float32 elements, by their number in the whole weight, of a 4-bit weight."""
    byte = tl.load(packed_pointer + (at >> 1), mask=mask, other=0).to(tl.int32)
    nibble = (byte >> ((1 - (at & 1)) * 4).to(tl.int32)) & 15
    scale = _scale(
        at >> BLOCK_BITS, mask, absmax_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
        NESTED, NESTED_BITS,
    )  # fmt: skip
    return tl.where(mask, tl.load(code_pointer + nibble) * scale, 0.0)


@triton.jit
def _product_kernel(
    x_pointer, weight_pointer, absmax_pointer, code_pointer, nested_absmax_pointer, nested_code_pointer, offset_pointer,
    packed_step, absmax_step, nested_step, offset_step, u_pointer, b_pointer, y_pointer, tiles_pointer, inputs, outputs, rank, scale, x_stride, expert_stride, row_stride,
    column_stride, u_stride, b_expert_stride, b_row_stride, b_column_stride, y_stride,
    PACKED: tl.constexpr, NESTED: tl.constexpr, BLOCK_BITS: tl.constexpr, NESTED_BITS: tl.constexpr,
    RANKS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """A tile of rows of one expert times a tile of the rows of its matrix."""
    entry = tiles_pointer + tl.program_id(0) * 3
    expert = tl.load(entry).to(tl.int64)
    first, end = tl.load(entry + 1), tl.load(entry + 2)
    if first >= end:
        return
    row = first.to(tl.int64) + tl.arange(0, ROWS)
    inside = row < end
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if PACKED:  # experts that are packed apart begin at steps of their own, others at 0
        weight_pointer += expert * packed_step
        absmax_pointer += expert * absmax_step
        nested_absmax_pointer += expert * nested_step
        offset_pointer += expert * offset_step
    for start in range(0, inputs, INNER):
        inner = start + tl.arange(0, INNER)
        mask = inside[:, None] & (inner < inputs)[None, :]
        x = tl.load(x_pointer + row[:, None] * x_stride + inner[None, :], mask=mask, other=0.0)
        mask = (inner < inputs)[:, None] & (column < outputs)[None, :]
        at = (
            expert * expert_stride + inner[:, None].to(tl.int64) * column_stride
            + column[None, :].to(tl.int64) * row_stride
        )  # fmt: skip
        if PACKED:
            weight = _decode_tile(
                at, mask, weight_pointer, absmax_pointer, code_pointer, nested_absmax_pointer, nested_code_pointer,
                offset_pointer, NESTED, BLOCK_BITS, NESTED_BITS,
            ).to(x_pointer.dtype.element_ty)  # fmt: skip
        else:
            weight = tl.load(weight_pointer + at, mask=mask, other=0.0)
        if WIDE:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        total = tl.dot(x, weight, total)
    total *= scale
    if RANKS:
        place = tl.arange(0, RANKS)
        mask = inside[:, None] & (place < rank)[None, :]
        u = tl.load(u_pointer + row[:, None] * u_stride + place[None, :], mask=mask, other=0.0)
        mask = (place < rank)[:, None] & (column < outputs)[None, :]
        b_at = (
            expert * b_expert_stride
            + place[:, None] * b_column_stride
            + column[None, :].to(tl.int64) * b_row_stride
        )
        b = tl.load(b_pointer + b_at, mask=mask, other=0.0)
        if WIDE:
            u, b = u.to(tl.float32), b.to(tl.float32)
        total = tl.dot(u, b, total)
    mask = inside[:, None] & (column < outputs)[None, :]
    y_at = y_pointer + row[:, None] * y_stride + column[None, :]
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
