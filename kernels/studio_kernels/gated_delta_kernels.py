"""Kernels of `gated_delta`: what lies inside a chunk, states from chunk to chunk, outputs, and the way back.

One program deals with one chunk of one value head, or, where states run on, with all chunks of one document for some
of a head's value dimensions. The names are those of gated_delta.py. Keys and queries are multiplied as they lie in
memory; their inverse lengths are factors of rows, applied in float32. `factors` holds (3, T, value heads): b, the
inverse length of k, and that of q times the scale.
"""

from __future__ import annotations

from studio_kernels._triton import tl, triton


@triton.jit
def _tile(pointer, row, stride, column, inside, columns, WIDE: tl.constexpr):
    """A tile (rows, columns), 0 outside; in float32 for the interpreter, whose dot needs it."""
    at = pointer + row.to(tl.int64)[:, None] * stride + column[None, :]
    tile = tl.load(at, mask=inside[:, None] & (column < columns)[None, :], other=0.0)
    if WIDE:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def _put(pointer, row, stride, column, inside, columns, tile):
    """Round the tile once and store it."""
    at = pointer + row.to(tl.int64)[:, None] * stride + column[None, :]
    tl.store(at, tile.to(pointer.dtype.element_ty), mask=inside[:, None] & (column < columns)[None, :])


@triton.jit
def _half(tile, like, WIDE: tl.constexpr):
    """The tile as it multiplies one of memory."""
    return tile if WIDE else tile.to(like.dtype.element_ty)


@triton.jit
def _factor(pointer, row, heads, head, inside):
    """One number a row of one head, in float32, 0 outside."""
    return tl.load(pointer + row.to(tl.int64) * heads + head, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _read_factors(pointer, plane, row, end, heads, head, inside):
    """b (behind the last row as there, so that no difference overflows), both inverse lengths, and b of that row."""
    last = tl.load(pointer + (end - 1).to(tl.int64) * heads + head)
    b = tl.where(inside, _factor(pointer, row, heads, head, inside), last)
    length = _factor(pointer + plane, row, heads, head, inside)
    return b, length, _factor(pointer + 2 * plane, row, heads, head, inside), last


@triton.jit
def _inverse_length(tile, NORMALISE: tl.constexpr):
    square = tl.sum(tile.to(tl.float32) * tile.to(tl.float32), axis=1)
    return tl.rsqrt(square + 1e-6) if NORMALISE else square * 0.0 + 1.0


@triton.jit
def _decay(b, CHUNK: tl.constexpr):
    """exp(b_i - b_j), which is at most 1, for j <= i; else 0."""
    place = tl.arange(0, CHUNK)
    below = place[:, None] >= place[None, :]
    return tl.where(below, tl.exp(tl.where(below, b[:, None] - b[None, :], 0.0)), 0.0)


@triton.jit(do_not_specialize=["plane"])
def _solve_kernel(
    q_pointer, k_pointer, v_pointer, g_pointer, beta_pointer, table_pointer, factors_pointer, inverse_pointer,
    w_pointer, u_pointer, plane, heads, q_stride, k_stride, v_stride, key_dim, value_dim, scale,
    GROUP: tl.constexpr, NORMALISE: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The factors of rows, the inverse of I + A, w and u."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(table_pointer + 2 * chunk), tl.load(table_pointer + 2 * chunk + 1)
    place = tl.arange(0, CHUNK)
    row, key = first + place, tl.arange(0, KEYS)
    inside = row < end
    at = row.to(tl.int64) * heads + head
    q = _tile(q_pointer + head // GROUP * key_dim, row, q_stride, key, inside, key_dim, WIDE)
    query_length = _inverse_length(q, NORMALISE) * scale
    k = _tile(k_pointer + head // GROUP * key_dim, row, k_stride, key, inside, key_dim, WIDE)
    length = _inverse_length(k, NORMALISE)
    b = tl.cumsum(_factor(g_pointer, row, heads, head, inside), axis=0)
    beta = _factor(beta_pointer, row, heads, head, inside)
    tl.store(factors_pointer + at, b, mask=inside)
    tl.store(factors_pointer + plane + at, length, mask=inside)
    tl.store(factors_pointer + 2 * plane + at, query_length, mask=inside)

    a = tl.dot(k, tl.trans(k)) * _decay(b, CHUNK) * (beta * length)[:, None] * length[None, :]
    line, other = place[:, None], place[None, :]
    pair = (line >> 1 == other >> 1) & (line > other)
    inverse = tl.where(line == other, 1.0, 0.0) - tl.where(pair, a, 0.0)
    # Two neighbouring blocks of the diagonal at a time: [[P, 0], [L, R]] has the inverse [[P', 0], [-R' L P', R']].
    # Entries are at most beta, since steps with keys of length 1 never stretch a state: float16 holds them to 11 bits.
    for level in range(1, LEVELS):
        corner = (line >> level + 1 == other >> level + 1) & (line >> level > other >> level)
        low = tl.where(corner, a, 0.0)
        if WIDE:
            inverse -= tl.dot(tl.dot(inverse, low), inverse)
        else:
            left = tl.dot(inverse.to(tl.float16), low.to(tl.float16))
            inverse -= tl.dot(left.to(tl.float16), inverse.to(tl.float16))
    everywhere = place < CHUNK
    square = inverse_pointer + (chunk * heads + head).to(tl.int64) * CHUNK * CHUNK
    _put(square, place, CHUNK, place, everywhere, CHUNK, inverse)
    w = tl.dot(_half(inverse * (beta * tl.exp(b) * length)[None, :], k_pointer, WIDE), k)
    _put(w_pointer + head * key_dim, row, heads * key_dim, key, inside, key_dim, w)
    scaled = _half(inverse * beta[None, :], k_pointer, WIDE)
    for start in range(0, value_dim, VALUES):
        value = start + tl.arange(0, VALUES)
        v = _tile(v_pointer + head * value_dim, row, v_stride, value, inside, value_dim, WIDE)
        _put(
            u_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, tl.dot(scaled, v)
        )


@triton.jit(do_not_specialize=["plane"])
def _scan_kernel(
    k_pointer, w_pointer, u_pointer, factors_pointer, table_pointer, starts_pointer, states_pointer, plane, heads,
    k_stride, key_dim, value_dim,
    GROUP: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The state before each chunk; what is learned, n, takes the place of u."""
    head, document = tl.program_id(1), tl.program_id(2)
    value, key = tl.program_id(0) * VALUES + tl.arange(0, VALUES), tl.arange(0, KEYS)
    state = tl.zeros((KEYS, VALUES), dtype=tl.float32)
    for chunk in range(tl.load(starts_pointer + document), tl.load(starts_pointer + document + 1)):
        first, end = tl.load(table_pointer + 2 * chunk), tl.load(table_pointer + 2 * chunk + 1)
        row = first + tl.arange(0, CHUNK)
        inside = row < end
        matrix = states_pointer + (chunk * heads + head).to(tl.int64) * key_dim * value_dim
        _put(matrix, key, value_dim, value, key < key_dim, value_dim, state)
        w = _tile(w_pointer + head * key_dim, row, heads * key_dim, key, inside, key_dim, WIDE)
        new = _tile(u_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        new = new.to(tl.float32) - tl.dot(w, _half(state, k_pointer, WIDE))
        _put(u_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, new)
        k = _tile(k_pointer + head // GROUP * key_dim, row, k_stride, key, inside, key_dim, WIDE)
        b, length, _, last = _read_factors(factors_pointer, plane, row, end, heads, head, inside)
        times = length * tl.exp(last - b)
        state = state * tl.exp(last) + tl.dot(tl.trans(k), _half(new * times[:, None], k_pointer, WIDE))


@triton.jit(do_not_specialize=["plane"])
def _output_kernel(
    q_pointer, k_pointer, new_pointer, factors_pointer, table_pointer, states_pointer, out_pointer, plane, heads,
    q_stride, k_stride, key_dim, value_dim,
    GROUP: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """o of one chunk."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(table_pointer + 2 * chunk), tl.load(table_pointer + 2 * chunk + 1)
    row, key = first + tl.arange(0, CHUNK), tl.arange(0, KEYS)
    inside = row < end
    q = _tile(q_pointer + head // GROUP * key_dim, row, q_stride, key, inside, key_dim, WIDE)
    k = _tile(k_pointer + head // GROUP * key_dim, row, k_stride, key, inside, key_dim, WIDE)
    b, length, query_length, _ = _read_factors(factors_pointer, plane, row, end, heads, head, inside)
    scores = tl.dot(q, tl.trans(k)) * _decay(b, CHUNK) * query_length[:, None] * length[None, :]
    scores = _half(scores, k_pointer, WIDE)
    times = query_length * tl.exp(b)
    matrix = states_pointer + (chunk * heads + head).to(tl.int64) * key_dim * value_dim
    for start in range(0, value_dim, VALUES):
        value = start + tl.arange(0, VALUES)
        state = _tile(matrix, key, value_dim, value, key < key_dim, value_dim, WIDE)
        new = _tile(new_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        out = tl.dot(q, state) * times[:, None] + tl.dot(scores, new)
        _put(out_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, out)


@triton.jit(do_not_specialize=["plane"])
def _early_kernel(
    q_pointer, k_pointer, dout_pointer, factors_pointer, table_pointer, dnew_pointer, plane, heads,
    q_stride, k_stride, key_dim, value_dim,
    GROUP: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The part of dn that comes from the chunk's own outputs: P^T do."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(table_pointer + 2 * chunk), tl.load(table_pointer + 2 * chunk + 1)
    row, key = first + tl.arange(0, CHUNK), tl.arange(0, KEYS)
    inside = row < end
    q = _tile(q_pointer + head // GROUP * key_dim, row, q_stride, key, inside, key_dim, WIDE)
    k = _tile(k_pointer + head // GROUP * key_dim, row, k_stride, key, inside, key_dim, WIDE)
    b, length, query_length, _ = _read_factors(factors_pointer, plane, row, end, heads, head, inside)
    scores = tl.dot(q, tl.trans(k)) * _decay(b, CHUNK) * query_length[:, None] * length[None, :]
    scores = tl.trans(_half(scores, k_pointer, WIDE))
    for start in range(0, value_dim, VALUES):
        value = start + tl.arange(0, VALUES)
        dout = _tile(dout_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        dnew = tl.dot(scores, dout)
        _put(dnew_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, dnew)


@triton.jit(do_not_specialize=["plane"])
def _scan_back_kernel(
    q_pointer, k_pointer, w_pointer, dout_pointer, factors_pointer, table_pointer, starts_pointer, dnew_pointer,
    dstates_pointer, plane, heads, q_stride, k_stride, key_dim, value_dim,
    GROUP: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The gradient of the state behind each chunk, and the rest of dn."""
    head, document = tl.program_id(1), tl.program_id(2)
    value, key = tl.program_id(0) * VALUES + tl.arange(0, VALUES), tl.arange(0, KEYS)
    begin, stop = tl.load(starts_pointer + document), tl.load(starts_pointer + document + 1)
    dstate = tl.zeros((KEYS, VALUES), dtype=tl.float32)
    for step in range(0, stop - begin):
        chunk = stop - 1 - step
        first, end = tl.load(table_pointer + 2 * chunk), tl.load(table_pointer + 2 * chunk + 1)
        row = first + tl.arange(0, CHUNK)
        inside = row < end
        matrix = dstates_pointer + (chunk * heads + head).to(tl.int64) * key_dim * value_dim
        _put(matrix, key, value_dim, value, key < key_dim, value_dim, dstate)
        b, length, query_length, last = _read_factors(factors_pointer, plane, row, end, heads, head, inside)
        k = _tile(k_pointer + head // GROUP * key_dim, row, k_stride, key, inside, key_dim, WIDE)
        times = length * tl.exp(last - b)
        dnew = _tile(dnew_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        dnew = dnew.to(tl.float32) + tl.dot(k, _half(dstate, k_pointer, WIDE)) * times[:, None]
        _put(dnew_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, dnew)
        w = _tile(w_pointer + head * key_dim, row, heads * key_dim, key, inside, key_dim, WIDE)
        q = _tile(q_pointer + head // GROUP * key_dim, row, q_stride, key, inside, key_dim, WIDE)
        dout = _tile(dout_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        dout = dout.to(tl.float32) * (query_length * tl.exp(b))[:, None]
        dstate = dstate * tl.exp(last) + tl.dot(tl.trans(q), _half(dout, k_pointer, WIDE))
        dstate -= tl.dot(tl.trans(w), _half(dnew, k_pointer, WIDE))


@triton.jit(do_not_specialize=["plane"])
def _values_back_kernel(
    q_pointer, k_pointer, v_pointer, beta_pointer, new_pointer, dout_pointer, factors_pointer, table_pointer,
    inverse_pointer, dnew_pointer, dv_pointer, db_pointer, dbeta_pointer, dscores_pointer, plane, heads,
    q_stride, k_stride, v_stride, key_dim, value_dim,
    GROUP: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """dv; what the squares of a chunk give of db and dbeta; and the gradients of q k^T and k k^T.

    x takes the place of dn; the gradient of k k^T, added to its transpose, that of the inverse.
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(table_pointer + 2 * chunk), tl.load(table_pointer + 2 * chunk + 1)
    place = tl.arange(0, CHUNK)
    row, key = first + place, tl.arange(0, KEYS)
    inside, everywhere = row < end, place < CHUNK
    at = row.to(tl.int64) * heads + head
    b, length, query_length, _ = _read_factors(factors_pointer, plane, row, end, heads, head, inside)
    beta = _factor(beta_pointer, row, heads, head, inside)
    square = inverse_pointer + (chunk * heads + head).to(tl.int64) * CHUNK * CHUNK
    inverse = tl.trans(_tile(square, place, CHUNK, place, everywhere, CHUNK, WIDE))
    dscores = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    da = tl.zeros((CHUNK, CHUNK), dtype=tl.float32)
    dbeta = tl.zeros((CHUNK,), dtype=tl.float32)
    for start in range(0, value_dim, VALUES):
        value = start + tl.arange(0, VALUES)
        new = _tile(new_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        dout = _tile(dout_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        dscores += tl.dot(dout, tl.trans(new))
        dnew = _tile(dnew_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
        x = tl.dot(inverse, dnew)
        da -= tl.dot(_half(x, k_pointer, WIDE), tl.trans(new))
        v = _tile(v_pointer + head * value_dim, row, v_stride, value, inside, value_dim, WIDE)
        dbeta += tl.sum(x * v.to(tl.float32), axis=1)
        _put(dnew_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, x)
        _put(
            dv_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, x * beta[:, None]
        )
    q = _tile(q_pointer + head // GROUP * key_dim, row, q_stride, key, inside, key_dim, WIDE)
    k = _tile(k_pointer + head // GROUP * key_dim, row, k_stride, key, inside, key_dim, WIDE)
    decay = _decay(b, CHUNK)
    dscores *= decay
    share = dscores * tl.dot(q, tl.trans(k)) * query_length[:, None] * length[None, :]
    da = tl.where(place[:, None] > place[None, :], da * decay, 0.0)
    product = da * tl.dot(k, tl.trans(k)) * length[:, None] * length[None, :]
    dbeta += tl.sum(product, axis=1)
    share += product * beta[:, None]
    db = tl.sum(share, axis=1) - tl.sum(share, axis=0)
    tl.store(db_pointer + at, db, mask=inside)
    tl.store(dbeta_pointer + at, dbeta, mask=inside)
    da *= beta[:, None]
    both = (chunk * heads + head).to(tl.int64) * CHUNK * CHUNK
    _put(dscores_pointer + both, place, CHUNK, place, everywhere, CHUNK, dscores)
    _put(square, place, CHUNK, place, everywhere, CHUNK, da + tl.trans(da))


@triton.jit(do_not_specialize=["plane"])
def _keys_back_kernel(
    q_pointer, k_pointer, beta_pointer, new_pointer, dout_pointer, x_pointer, factors_pointer, table_pointer,
    states_pointer, dstates_pointer, dscores_pointer, dsquare_pointer, db_pointer, dbeta_pointer, dq_pointer,
    dk_pointer, dg_pointer, dbeta_out_pointer, plane, heads, q_stride, k_stride, key_dim, value_dim,
    GROUP: tl.constexpr, WIDE: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The gradients of queries and keys of length 1, of each value head, and dg and dbeta."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(table_pointer + 2 * chunk), tl.load(table_pointer + 2 * chunk + 1)
    place = tl.arange(0, CHUNK)
    row, inside, everywhere = first + place, first + place < end, place < CHUNK
    at = row.to(tl.int64) * heads + head
    b, length, query_length, last = _read_factors(factors_pointer, plane, row, end, heads, head, inside)
    beta = _factor(beta_pointer, row, heads, head, inside)
    grown = tl.exp(b)
    rest = tl.exp(last - b)
    squares = (chunk * heads + head).to(tl.int64) * CHUNK * CHUNK
    dscores = _tile(dscores_pointer + squares, place, CHUNK, place, everywhere, CHUNK, WIDE).to(tl.float32)
    dsquare = _tile(dsquare_pointer + squares, place, CHUNK, place, everywhere, CHUNK, WIDE).to(tl.float32)
    by_key = _half(dscores * length[None, :], k_pointer, WIDE)
    by_query = tl.trans(_half(dscores * query_length[:, None], k_pointer, WIDE))
    dsquare = _half(dsquare * length[None, :], k_pointer, WIDE)
    matrix = (chunk * heads + head).to(tl.int64) * key_dim * value_dim
    db = tl.load(db_pointer + at, mask=inside, other=0.0)
    dbeta = tl.load(dbeta_pointer + at, mask=inside, other=0.0)
    at_last = tl.zeros((CHUNK,), dtype=tl.float32)
    across = tl.zeros((KEYS, VALUES), dtype=tl.float32)
    for begin in range(0, key_dim, KEYS):
        key = begin + tl.arange(0, KEYS)
        dq = tl.zeros((CHUNK, KEYS), dtype=tl.float32)
        dk = tl.zeros((CHUNK, KEYS), dtype=tl.float32)
        dread = tl.zeros((CHUNK, KEYS), dtype=tl.float32)
        for start in range(0, value_dim, VALUES):
            value = start + tl.arange(0, VALUES)
            state = _tile(states_pointer + matrix, key, value_dim, value, key < key_dim, value_dim, WIDE)
            dstate = _tile(dstates_pointer + matrix, key, value_dim, value, key < key_dim, value_dim, WIDE)
            across += state.to(tl.float32) * dstate.to(tl.float32)
            dout = _tile(
                dout_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE
            )
            dq += tl.dot(dout, tl.trans(state))
            new = _tile(
                new_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE
            )
            dk += tl.dot(new, tl.trans(dstate))
            x = _tile(x_pointer + head * value_dim, row, heads * value_dim, value, inside, value_dim, WIDE)
            dread += tl.dot(x, tl.trans(state))
        q = _tile(q_pointer + head // GROUP * key_dim, row, q_stride, key, inside, key_dim, WIDE)
        k = _tile(k_pointer + head // GROUP * key_dim, row, k_stride, key, inside, key_dim, WIDE)
        dq *= grown[:, None]
        dk *= rest[:, None]
        dread *= grown[:, None]
        from_read = tl.sum(dread * k.to(tl.float32), axis=1) * length
        from_state = tl.sum(dk * k.to(tl.float32), axis=1) * length
        db += tl.sum(dq * q.to(tl.float32), axis=1) * query_length - from_state - beta * from_read
        at_last += from_state
        dbeta -= from_read
        dq += tl.dot(by_key, k)
        dk += tl.dot(by_query, q) + tl.dot(dsquare, k) - dread * beta[:, None]
        _put(dq_pointer + head * key_dim, row, heads * key_dim, key, inside, key_dim, dq)
        _put(dk_pointer + head * key_dim, row, heads * key_dim, key, inside, key_dim, dk)
    ends = tl.sum(at_last, axis=0) + tl.exp(last) * tl.sum(tl.sum(across, axis=1), axis=0)
    db = tl.where(inside, db, 0.0) + tl.where(row == end - 1, ends, 0.0)
    dg = tl.sum(tl.where(place[:, None] >= place[None, :], db[:, None], 0.0), axis=0)
    tl.store(dg_pointer + at, dg.to(dg_pointer.dtype.element_ty), mask=inside)
    tl.store(dbeta_out_pointer + at, dbeta.to(dbeta_out_pointer.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _lengths_back_kernel(
    x_pointer, dunit_pointer, dx_pointer, rows, heads, x_stride, key_dim, scale,
    GROUP: tl.constexpr, NORMALISE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The gradient of q or k of one key head, of those of its value heads, GROUP of them one after the other."""
    row, key = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, KEYS)
    head, inside = tl.program_id(1), row < rows
    dunit = tl.zeros((ROWS, KEYS), dtype=tl.float32)
    for member in range(GROUP):
        part = dunit_pointer + (head * GROUP + member) * key_dim
        dunit += _tile(part, row, heads * GROUP * key_dim, key, inside, key_dim, True)
    x = _tile(x_pointer + head * key_dim, row, x_stride, key, inside, key_dim, True)
    length = _inverse_length(x, NORMALISE)
    if NORMALISE:
        unit = x * length[:, None]
        dunit -= unit * tl.sum(unit * dunit, axis=1)[:, None]
    dx = dunit * (length * scale)[:, None]
    _put(dx_pointer + head * key_dim, row, heads * key_dim, key, inside, key_dim, dx)
