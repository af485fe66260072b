"""The kernels of `decode_attention`: one part of a slot's keys for the query heads of one key head, and the parts' sum.

Scores are kept times log2(e), since the hardware computes powers of 2: `outer` has this factor, `inner` is
2 scale log2(e) / softcap. A part is its highest score, the sum of its shares over that and their mean of the values.
"""

from __future__ import annotations

from studio_kernels._triton import tl, triton

NEVER = tl.constexpr(-1e30)
"""The score of what is not seen. Not -inf: two of them would give NaN as a difference."""


@triton.jit
def _bend(product, inner):
    """tanh(scale product / softcap), from one power of 2 and one division; right at infinity."""
    return 1.0 - 2.0 / (1.0 + tl.exp2(product * inner))


@triton.jit
def _add_sink(sinks_pointer, head, mask, highest, total):
    """The highest score and the sum with the heads' own scores, which no value stands behind."""
    sink = tl.load(sinks_pointer + head, mask=mask, other=NEVER).to(tl.float32) * 1.4426950408889634
    most = tl.maximum(highest, sink)
    return most, total * tl.exp2(highest - most) + tl.exp2(sink - most)


@triton.jit(do_not_specialize=["lengths_pointer", "window"])
def _part_kernel(
    q_pointer, k_pointer, v_pointer, table_pointer, lengths_pointer, sinks_pointer, out_pointer, highest_pointer,
    total_pointer, window, inner, outer, q_slot, q_head, k_page, k_token, k_head, v_page, v_token, v_head,
    table_slot, SHARED: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, CAPPED: tl.constexpr,
    SUNK: tl.constexpr, WHOLE: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A part of the keys of one slot. WHOLE: the only one, which writes the output itself."""
    slot, key_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, parts = tl.program_id(2), tl.num_programs(2)
    length = tl.load(lengths_pointer + slot)
    first = tl.maximum(length - window, 0)
    begin = first // KEYS
    # Every part takes as many tiles of the keys that are seen now: as even as whole tiles can be.
    tiles = tl.cdiv(tl.cdiv(length, KEYS) - begin, parts)
    begin += part * tiles
    end = tl.minimum((begin + tiles) * KEYS, length)
    query, column = tl.arange(0, QUERIES), tl.arange(0, COLUMNS)
    here = query < SHARED
    head = key_head * SHARED + query
    inside = here[:, None] & (column < HEAD_DIM)[None, :]
    q = tl.load(q_pointer + slot * q_slot + head[:, None] * q_head + column[None, :], mask=inside, other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    highest = tl.full((QUERIES,), NEVER, dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    result = tl.zeros((QUERIES, COLUMNS), dtype=tl.float32)
    table, k_at, v_at = (
        table_pointer + slot * table_slot,
        k_pointer + key_head * k_head,
        v_pointer + key_head * v_head,
    )
    for at in tl.range(begin * KEYS, end, KEYS):
        key = at + tl.arange(0, KEYS)
        known = key < end
        page = tl.load(table + key // PAGE, mask=known, other=0).to(tl.int64)
        token = key % PAGE
        mask = known[:, None] if HEAD_DIM == COLUMNS else known[:, None] & (column < HEAD_DIM)[None, :]
        k = tl.load(k_at + (page * k_page + token * k_token)[:, None] + column[None, :], mask=mask, other=0.0)
        v = tl.load(v_at + (page * v_page + token * v_token)[:, None] + column[None, :], mask=mask, other=0.0)
        if WIDE:
            k, v = k.to(tl.float32), v.to(tl.float32)
        score = tl.dot(q, tl.trans(k))
        if CAPPED:
            score = _bend(score, inner)
        seen = known & (key >= first)
        score = tl.where(seen[None, :], score * outer, NEVER)
        before = highest
        highest = tl.maximum(before, tl.max(score, axis=1))
        share = tl.where(seen[None, :], tl.exp2(score - highest[:, None]), 0.0)
        fade = tl.exp2(before - highest)
        total = total * fade + tl.sum(share, axis=1)
        result = tl.dot(share.to(v.dtype), v, result * fade[:, None])
    heads = tl.num_programs(1) * SHARED
    row = slot * heads + head
    if WHOLE:
        if SUNK:
            most, all_of_it = _add_sink(sinks_pointer, head, here, highest, total)
            result *= tl.exp2(highest - most)[:, None]
            total = all_of_it
        result /= tl.where(total > 0, total, 1.0)[:, None]
        to = out_pointer + row[:, None] * HEAD_DIM + column[None, :]
        tl.store(to, result.to(out_pointer.dtype.element_ty), mask=inside)
    else:
        number = row * parts + part
        tl.store(out_pointer + number[:, None] * HEAD_DIM + column[None, :], result, mask=inside)
        tl.store(highest_pointer + number, highest, mask=here)
        tl.store(total_pointer + number, total, mask=here)


@triton.jit(do_not_specialize=["heads", "parts"])
def _merge_kernel(
    parts_pointer, highest_pointer, total_pointer, sinks_pointer, out_pointer, heads, parts,
    HEAD_DIM: tl.constexpr, SUNK: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The output of one head of one slot from its parts, AT_ONCE of them at a time."""
    row = tl.program_id(0).to(tl.int64)
    part, column = tl.arange(0, PARTS), tl.arange(0, COLUMNS)
    each = tl.load(highest_pointer + row * parts + part, mask=part < parts, other=NEVER)
    sums = tl.load(total_pointer + row * parts + part, mask=part < parts, other=0.0)
    highest = tl.max(each, axis=0)
    total = tl.sum(sums * tl.exp2(each - highest), axis=0)
    if SUNK:
        highest, total = _add_sink(sinks_pointer, row % heads, True, highest, total)
    result = tl.zeros((COLUMNS,), dtype=tl.float32)
    for at in tl.range(0, parts, AT_ONCE):
        number = at + tl.arange(0, AT_ONCE)
        peak = tl.load(highest_pointer + row * parts + number, mask=number < parts, other=NEVER)
        values = tl.load(
            parts_pointer + (row * parts + number)[:, None] * HEAD_DIM + column[None, :],
            mask=(number < parts)[:, None] & (column < HEAD_DIM)[None, :], other=0.0,
        )  # fmt: skip
        result += tl.sum(values * tl.exp2(peak - highest)[:, None], axis=0)
    result /= tl.where(total > 0, total, 1.0)
    tl.store(
        out_pointer + row * HEAD_DIM + column, result.to(out_pointer.dtype.element_ty), mask=column < HEAD_DIM
    )
