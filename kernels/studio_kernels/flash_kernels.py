"""Kernels of `flash`: a tile of queries against the keys that any of it sees, and a tile of keys against its queries.

Rows are places in the batch. A row sees the keys from `first` to itself; its document starts its position before it.
`first` never falls from row to row, so that a tile's first row says where the tile's keys begin. Scores are kept times
log2(e), since the hardware computes powers of 2: `outer` has this factor, `inner` is 2 scale log2(e) / softcap.
"""

from __future__ import annotations

from studio_kernels._triton import tl, triton


@triton.jit
def _read(
    pointer, row, stride, column, rows, HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr
):
    """A tile (rows, head columns) of one head, 0 outside; in float32 for the interpreter, whose dot needs it."""
    at = pointer + row.to(tl.int64)[:, None] * stride + column[None, :]
    if HEAD_DIM == COLUMNS:
        tile = tl.load(at, mask=(row < rows)[:, None], other=0.0)
    else:
        tile = tl.load(at, mask=(row < rows)[:, None] & (column < HEAD_DIM)[None, :], other=0.0)
    if WIDE:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def _write(pointer, row, stride, column, rows, tile, HEAD_DIM: tl.constexpr):
    """Round the tile once and store it."""
    at = pointer + row.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(at, tile.to(pointer.dtype.element_ty), mask=(row < rows)[:, None] & (column < HEAD_DIM)[None, :])


@triton.jit
def _bend(product, inner):
    """tanh(scale product / softcap), from one power of 2 and one division; right at infinity."""
    return 1.0 - 2.0 / (1.0 + tl.exp2(product * inner))


@triton.jit
def _first_seen(positions_pointer, row, rows, window):
    """The first key that each row sees."""
    position = tl.load(positions_pointer + row, mask=row < rows, other=0)
    return row - tl.minimum(position, window - 1)


@triton.jit(do_not_specialize=["positions_pointer", "rows", "window"])
def _forward_kernel(
    q_pointer, k_pointer, v_pointer, positions_pointer, out_pointer, sums_pointer, rows, window, inner, outer,
    q_stride, k_stride, v_stride, out_stride, q_head, k_head, v_head, out_head,
    SHARED: tl.constexpr, CAPPED: tl.constexpr, HEAD_DIM: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out and the log-sums of one tile of one query head."""
    # The last tiles of a document have the most keys: they begin first.
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, column = tile * QUERIES + tl.arange(0, QUERIES), tl.arange(0, COLUMNS)
    first = _first_seen(positions_pointer, row, rows, window)
    q = _read(q_pointer + head * q_head, row, q_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
    k_at, v_at = k_pointer + head // SHARED * k_head, v_pointer + head // SHARED * v_head
    # Not -inf: rows that see nothing of their first tiles would become NaN. What they sum there fades to 0 exactly.
    highest = tl.full((QUERIES,), -1e30, dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)
    result = tl.zeros((QUERIES, COLUMNS), dtype=tl.float32)
    for at in tl.range(tl.min(first, axis=0) // KEYS * KEYS, tl.minimum((tile + 1) * QUERIES, rows), KEYS):
        key = at + tl.arange(0, KEYS)
        k = _read(k_at, key, k_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
        score = tl.dot(q, tl.trans(k))
        if CAPPED:
            score = _bend(score, inner)
        seen = (key[None, :] <= row[:, None]) & (key[None, :] >= first[:, None])
        score = tl.where(seen, score * outer, -1e30)
        before = highest
        highest = tl.maximum(before, tl.max(score, axis=1))
        share = tl.exp2(score - highest[:, None])
        fade = tl.exp2(before - highest)
        total = total * fade + tl.sum(share, axis=1)
        v = _read(v_at, key, v_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
        result = tl.dot(share.to(v.dtype), v, result * fade[:, None])
    _write(out_pointer + head * out_head, row, out_stride, column, rows, result / total[:, None], HEAD_DIM)
    log_sum = (highest + tl.log2(total)) * 0.6931471805599453
    tl.store(sums_pointer + head * rows + row, log_sum, mask=row < rows)


@triton.jit(do_not_specialize=["positions_pointer", "rows", "window"])
def _query_kernel(
    dout_pointer, q_pointer, k_pointer, v_pointer, out_pointer, sums_pointer, positions_pointer, dq_pointer,
    delta_pointer, rows, window, inner, outer, scale,
    dout_stride, q_stride, k_stride, v_stride, out_stride, dq_stride,
    dout_head, q_head, k_head, v_head, out_head, dq_head,
    SHARED: tl.constexpr, CAPPED: tl.constexpr, HEAD_DIM: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr, SUNK: tl.constexpr,
):  # fmt: skip
    """dq and delta of one tile of one query head.

    `out` was rounded, and so is `rough`, its delta: where one share is nearly 1 the gradient is what is left of a
    difference (dp - delta), by which the rounding would show whole. The loop sums the true delta on its way, and with
    share k summed beside it dq is taken back by what `rough` was off. Where heads have sinks (SUNK) shares are
    summed, too: `rough` was taken off by their sum alone.
    """
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, column = tile * QUERIES + tl.arange(0, QUERIES), tl.arange(0, COLUMNS)
    first = _first_seen(positions_pointer, row, rows, window)
    q = _read(q_pointer + head * q_head, row, q_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
    out = _read(out_pointer + head * out_head, row, out_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
    dout = _read(dout_pointer + head * dout_head, row, dout_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
    rough = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
    delta = tl.zeros((QUERIES,), dtype=tl.float32)
    log_sum = (
        tl.load(sums_pointer + head * rows + row, mask=row < rows, other=float("inf")) * 1.4426950408889634
    )
    k_at, v_at = k_pointer + head // SHARED * k_head, v_pointer + head // SHARED * v_head
    result = tl.zeros((QUERIES, COLUMNS), dtype=tl.float32)
    mean = tl.zeros((QUERIES, COLUMNS), dtype=tl.float32)
    shares = tl.zeros((QUERIES,), dtype=tl.float32)
    for at in tl.range(tl.min(first, axis=0) // KEYS * KEYS, tl.minimum((tile + 1) * QUERIES, rows), KEYS):
        key = at + tl.arange(0, KEYS)
        k = _read(k_at, key, k_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
        v = _read(v_at, key, v_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
        score = tl.dot(q, tl.trans(k))
        if CAPPED:
            score = _bend(score, inner)
        seen = (key[None, :] <= row[:, None]) & (key[None, :] >= first[:, None])
        share = tl.where(seen, tl.exp2(score * outer - log_sum[:, None]), 0.0)
        upstream = tl.dot(dout, tl.trans(v)) - rough[:, None]
        delta += tl.sum(share * upstream, axis=1)
        if SUNK:
            shares += tl.sum(share, axis=1)
        if CAPPED:
            share *= 1.0 - score * score
        result = tl.dot((share * upstream).to(k.dtype), k, result)
        mean = tl.dot(share.to(k.dtype), k, mean)
    if SUNK:
        delta -= (1.0 - shares) * rough
    result -= delta[:, None] * mean
    tl.store(delta_pointer + head * rows + row, rough + delta, mask=row < rows)
    _write(dq_pointer + head * dq_head, row, dq_stride, column, rows, result * scale, HEAD_DIM)


@triton.jit(do_not_specialize=["positions_pointer", "starts_pointer", "rows", "window", "bounds"])
def _key_kernel(
    dout_pointer, q_pointer, k_pointer, v_pointer, sums_pointer, delta_pointer, positions_pointer, starts_pointer,
    dk_pointer, dv_pointer, rows, window, bounds, inner, outer, scale,
    dout_stride, q_stride, k_stride, v_stride, dk_stride, dv_stride,
    dout_head, q_head, k_head, v_head, dk_head, dv_head,
    SHARED: tl.constexpr, CAPPED: tl.constexpr, HEAD_DIM: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of one key head, summed over the query heads that share it; scores are transposed."""
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    key, column = tile * KEYS + tl.arange(0, KEYS), tl.arange(0, COLUMNS)
    last = tl.minimum((tile + 1) * KEYS, rows) - 1
    # The end of the last key's document is the smallest start behind it.
    end = rows
    for at in range(0, bounds, 128):
        bound = at + tl.arange(0, 128)
        start = tl.load(starts_pointer + bound, mask=bound < bounds, other=0)
        end = tl.minimum(end, tl.min(tl.where(start > last, start, rows), axis=0))
    end = tl.minimum(end, last + window)
    k = _read(k_pointer + head * k_head, key, k_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
    v = _read(v_pointer + head * v_head, key, v_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
    dk = tl.zeros((KEYS, COLUMNS), dtype=tl.float32)
    dv = tl.zeros((KEYS, COLUMNS), dtype=tl.float32)
    for reader in range(SHARED):
        q_at = q_pointer + (head * SHARED + reader) * q_head
        dout_at = dout_pointer + (head * SHARED + reader) * dout_head
        numbers = (head * SHARED + reader) * rows
        for at in tl.range(tile * KEYS // QUERIES * QUERIES, end, QUERIES):
            row = at + tl.arange(0, QUERIES)
            first = _first_seen(positions_pointer, row, rows, window)
            q = _read(q_at, row, q_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
            score = tl.dot(k, tl.trans(q))
            if CAPPED:
                score = _bend(score, inner)
            log_sum = (
                tl.load(sums_pointer + numbers + row, mask=row < rows, other=float("inf"))
                * 1.4426950408889634
            )
            seen = (key[:, None] <= row[None, :]) & (key[:, None] >= first[None, :])
            share = tl.where(seen, tl.exp2(score * outer - log_sum[None, :]), 0.0)
            dout = _read(dout_at, row, dout_stride, column, rows, HEAD_DIM, COLUMNS, WIDE)
            dv = tl.dot(share.to(dout.dtype), dout, dv)
            delta = tl.load(delta_pointer + numbers + row, mask=row < rows, other=0.0)
            gradient = share * (tl.dot(v, tl.trans(dout)) - delta[None, :])
            if CAPPED:
                gradient *= 1.0 - score * score
            dk = tl.dot(gradient.to(q.dtype), q, dk)
    _write(dk_pointer + head * dk_head, key, dk_stride, column, rows, dk * scale, HEAD_DIM)
    _write(dv_pointer + head * dv_head, key, dv_stride, column, rows, dv, HEAD_DIM)
