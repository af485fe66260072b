"""The kernels of `few_rows`: U in parts of the columns, and the product of all linears with what the adapters add."""

from __future__ import annotations

from studio_kernels._triton import tl, triton


@triton.jit(do_not_specialize=["rows"])
def _down_kernel(
    x_pointer, a_pointer, u_pointer, rows, columns, x_stride, ranks, STEP: tl.constexpr, KEYS: tl.constexpr,
    ROWS: tl.constexpr, RANKS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """X A^T over STEP of the columns, in float32."""
    part = tl.program_id(0)
    row, rank = tl.arange(0, ROWS), tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    known = rank < ranks
    total = tl.zeros((ROWS, RANKS), dtype=tl.float32)
    for start in range(part * STEP, part * STEP + STEP, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < columns
        x = tl.load(
            x_pointer + row[:, None] * x_stride + key[None, :], mask=(row < rows)[:, None] & inside[None, :], other=0.0
        )  # fmt: skip
        a = tl.load(
            a_pointer + rank[:, None] * columns + key[None, :], mask=known[:, None] & inside[None, :], other=0.0
        )  # fmt: skip
        if WIDE:
            x, a = x.to(tl.float32), a.to(tl.float32)
        total = tl.dot(x, tl.trans(a), total)
    to = u_pointer + (part * rows + row[:, None]) * ranks + rank[None, :]
    tl.store(to, total, mask=(row < rows)[:, None] & known[None, :])


@triton.jit(
    do_not_specialize=[
        "rows",
        "add_stride",
        "out_stride",
        "first_end",
        "second_end",
        "size0",
        "size1",
        "size2",
    ]
)
def _product_kernel(
    x_pointer, first_pointer, second_pointer, third_pointer, u_pointer, b_pointer, bias_pointer, add_pointer,
    out_pointer, rows, columns, x_stride, w_stride, add_stride, out_stride, first_end, second_end, size0, size1, size2,
    SPLIT: tl.constexpr, SPLITS: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, PARTS: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr, OUTPUTS: tl.constexpr,
    KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile of one linear's outputs; programs up to `first_end` are the first one's."""
    dtype: tl.constexpr = x_pointer.dtype.element_ty
    tile = tl.program_id(0)
    part = (tile >= first_end).to(tl.int32) + (tile >= second_end).to(tl.int32) if PARTS > 1 else 0
    weight_pointer, size, before = first_pointer, size0, 0
    if PARTS > 1:
        weight_pointer = tl.where(
            part == 0, first_pointer, tl.where(part == 1, second_pointer, third_pointer)
        )
        size = tl.where(part == 0, size0, tl.where(part == 1, size1, size2))
        before = tl.where(part == 0, 0, tl.where(part == 1, size0, size0 + size1))
        tile -= tl.where(part == 0, 0, tl.where(part == 1, first_end, second_end))
    weight_pointer = tl.multiple_of(weight_pointer, 16)
    output, row = tile * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    inside, row_mask = output < size, row < rows
    known = tl.where(inside, output, 0).to(tl.int64)  # the last tile reads a row that there is
    column = before + output
    total = tl.zeros((OUTPUTS, ROWS), dtype=tl.float32)
    key = tl.arange(0, KEYS)
    w_at = weight_pointer + known[:, None] * w_stride + key[None, :]
    x_at = x_pointer + row[:, None] * x_stride + key[None, :]
    for start in range(0, columns, KEYS):
        if EVEN:
            w = tl.load(w_at + start)
            x = tl.load(x_at + start, mask=row_mask[:, None], other=0.0)
        else:
            there = (start + key < columns)[None, :]
            w = tl.load(w_at + start, mask=there, other=0.0)
            x = tl.load(x_at + start, mask=row_mask[:, None] & there, other=0.0)
        if WIDE:
            w, x = w.to(tl.float32), x.to(tl.float32)
        total = tl.dot(w, tl.trans(x), total)
    if RANK:
        rank, split = tl.arange(0, RANKS), tl.arange(0, SPLITS)
        held = (split < SPLIT)[:, None, None] & row_mask[None, :, None] & (rank < RANK)[None, None, :]
        at = (
            (split[:, None, None] * rows + row[None, :, None]) * (PARTS * RANK)
            + part * RANK
            + rank[None, None, :]
        )
        u = tl.sum(tl.load(u_pointer + at, mask=held, other=0.0), axis=0).to(dtype)
        b = tl.load(
            b_pointer + column[:, None].to(tl.int64) * RANK + rank[None, :],
            mask=inside[:, None] & (rank < RANK)[None, :], other=0.0,
        )  # fmt: skip
        if WIDE:
            u, b = u.to(tl.float32), b.to(tl.float32)
        total = tl.dot(b, tl.trans(u), total)
    if BIASED:
        total += tl.load(bias_pointer + column, mask=inside, other=0.0).to(tl.float32)[:, None]
    mask = inside[:, None] & row_mask[None, :]
    if ADDED:
        more = tl.load(add_pointer + row[None, :] * add_stride + column[:, None], mask=mask, other=0.0)
        total += more.to(tl.float32)
    tl.store(out_pointer + row[None, :] * out_stride + column[:, None], total.to(dtype), mask=mask)
