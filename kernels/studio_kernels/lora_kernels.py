"""Kernels of `lora`: partial products of tiles of wide rows all over the card, then their sums in a fixed order."""

from __future__ import annotations

from studio_kernels._triton import tl, triton


@triton.jit(do_not_specialize=["rows", "blocks_per_part"])
def _outer_kernel(
    y_pointer, z_pointer, b_pointer, tiles_pointer, partial_pointer, g_pointer, rows, blocks_per_part, y_stride,
    z_stride, b_stride,
    FULL: tl.constexpr, ROW_STEP: tl.constexpr, COLUMN_STEP: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """Of each tile of a table, partial sums of y^T z and y b; y is read once."""
    tile, part, tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    entry = tiles_pointer + tile * 6
    first = tl.multiple_of(tl.load(entry), ROW_STEP)
    end = tl.multiple_of(tl.load(entry + 1), ROW_STEP)
    first_rank = tl.multiple_of(tl.load(entry + 2), COLUMN_STEP)
    count = tl.load(entry + 3)
    column = first + tl.arange(0, COLUMNS)
    rank = tl.arange(0, RANKS)
    inside = column < end
    b_at = b_pointer + column[:, None].to(tl.int64) * b_stride + first_rank + rank[None, :]
    if FULL:
        b = tl.load(b_at, mask=inside[:, None], other=0.0)
    else:
        b = tl.load(b_at, mask=inside[:, None] & (rank < count)[None, :], other=0.0)
    if WIDE:
        b = b.to(tl.float32)
    total = tl.zeros((COLUMNS, RANKS), dtype=tl.float32)
    for block in range(blocks_per_part):
        row = (part * blocks_per_part + block).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        y_at = y_pointer + row[:, None] * y_stride + column[None, :]
        y = tl.load(y_at, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        z_at = z_pointer + row[:, None] * z_stride + first_rank + rank[None, :]
        if FULL:
            z = tl.load(z_at, mask=(row < rows)[:, None], other=0.0)
        else:
            z = tl.load(z_at, mask=(row < rows)[:, None] & (rank < count)[None, :], other=0.0)
        if WIDE:
            y, z = y.to(tl.float32), z.to(tl.float32)
        total = tl.dot(tl.trans(y), z, total)
        g_at = g_pointer + (tile.to(tl.int64) * rows + row[:, None]) * RANKS + rank[None, :]
        tl.store(g_at, tl.dot(y, b), mask=(row < rows)[:, None])
    at = (part * tiles + tile).to(tl.int64) * COLUMNS * RANKS
    inner = tl.arange(0, COLUMNS)[:, None] * RANKS + rank[None, :]
    tl.store(partial_pointer + at + inner, total)


@triton.jit(do_not_specialize=["rows"])
def _sum_rows_kernel(
    partial_pointer, groups_pointer, out_pointer, rows, out_stride,
    RANKS: tl.constexpr, ELEMENTS: tl.constexpr, SUMMANDS: tl.constexpr,
):  # fmt: skip
    """out (T, R) = sums of (tiles, T, RANKS); a table says of which tiles, and where they go."""
    entry = groups_pointer + tl.program_id(1) * 4
    first, end = tl.load(entry), tl.load(entry + 1)
    first_rank, count = tl.load(entry + 2), tl.load(entry + 3)
    element = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    row = element // RANKS
    rank = element % RANKS
    total = tl.zeros((ELEMENTS,), dtype=tl.float32)
    for start in range(first, end, SUMMANDS):
        summand = start + tl.arange(0, SUMMANDS)
        mask = (summand < end)[:, None] & (row < rows)[None, :]
        at = summand.to(tl.int64)[:, None] * rows * RANKS + element[None, :]
        total += tl.sum(tl.load(partial_pointer + at, mask=mask, other=0.0), axis=0)
    out_at = out_pointer + row * out_stride + first_rank + rank
    tl.store(out_at, total.to(out_pointer.dtype.element_ty), mask=(row < rows) & (rank < count))


@triton.jit(do_not_specialize=["parts"])
def _add_kernel(
    partial_pointer, tiles_pointer, scales_pointer, out_pointer, parts,
    COLUMNS: tl.constexpr, RANKS: tl.constexpr, ELEMENTS: tl.constexpr, SUMMANDS: tl.constexpr,
):  # fmt: skip
    """out += scale times the sums of (parts, tiles, COLUMNS, RANKS), each tile where the table says."""
    tile = tl.program_id(1)
    element = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    column = element // RANKS
    rank = element % RANKS
    entry = tiles_pointer + tile * 6
    inside = (column < tl.load(entry + 1) - tl.load(entry)) & (rank < tl.load(entry + 3))
    out_at = out_pointer + tl.load(entry + 4) + column * tl.load(entry + 5) + rank
    total = tl.zeros((ELEMENTS,), dtype=tl.float32)
    for start in range(0, parts, SUMMANDS):
        summand = start + tl.arange(0, SUMMANDS)
        at = (summand.to(tl.int64) * tl.num_programs(1) + tile)[:, None] * COLUMNS * RANKS + element[None, :]
        total += tl.sum(tl.load(partial_pointer + at, mask=(summand < parts)[:, None], other=0.0), axis=0)
    before = tl.load(out_at, mask=inside, other=0.0)
    tl.store(out_at, before + total * tl.load(scales_pointer + tile), mask=inside)
