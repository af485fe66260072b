"""The kernels of `rope`: one each way, for a token and a group of heads, whether of queries, keys or values."""

from __future__ import annotations

from studio_kernels._triton import tl, triton


@triton.jit
def _load(pointer, mask):
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, value, mask):
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _load_weight(query_pointer, key_pointer, is_query, column, mask, OFFSET: tl.constexpr):
    return tl.where(is_query, _load(query_pointer + column, mask), _load(key_pointer + column, mask)) + OFFSET


@triton.jit
def _forward_kernel(
    x_pointer, out_pointer, cos_pointer, sin_pointer, positions_pointer, query_norm_pointer, key_norm_pointer,
    x_stride, out_stride, cos_stride, sin_stride,
    QUERY_HEADS: tl.constexpr, ALL_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr, REST: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
):  # fmt: skip
    # A head's columns are a | b | c: a and b turn into one another, c (only with REST) stays.
    # INTERLEAVED: a and b alternate.
    STEP: tl.constexpr = 2 if INTERLEAVED else 1
    APART: tl.constexpr = 1 if INTERLEAVED else HALF
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    half_mask = column < HALF
    mask = (head < ALL_HEADS) & half_mask
    position = tl.load(positions_pointer + token).to(tl.int64)
    cos = _load(cos_pointer + position * cos_stride + column, half_mask)
    sin = _load(sin_pointer + position * sin_stride + column, half_mask)
    at = head * HEAD_DIM + column * STEP
    x_row, out_row = x_pointer + token * x_stride, out_pointer + token * out_stride
    a, b = _load(x_row + at, mask), _load(x_row + at + APART, mask)
    if REST:
        rest = tl.arange(0, REST_BLOCK)[None, :] + 2 * HALF
        rest_mask = (head < ALL_HEADS) & (rest < HEAD_DIM)
        c = _load(x_row + head * HEAD_DIM + rest, rest_mask)
    if NORM:
        squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
        if REST:
            squares += tl.sum(c * c, axis=1)
        r = tl.rsqrt(squares / HEAD_DIM + EPS)[:, None]
        dtype: tl.constexpr = x_pointer.dtype.element_ty if CAST_FIRST else tl.float32
        is_query = head < QUERY_HEADS
        query, key = query_norm_pointer, key_norm_pointer
        a, b = (a * r).to(dtype).to(tl.float32), (b * r).to(dtype).to(tl.float32)
        a *= _load_weight(query, key, is_query, column * STEP, half_mask, OFFSET)
        b *= _load_weight(query, key, is_query, column * STEP + APART, half_mask, OFFSET)
        if REST:
            c = (c * r).to(dtype).to(tl.float32)
            c *= _load_weight(query, key, is_query, rest, rest < HEAD_DIM, OFFSET)
    _store(out_row + at, a * cos - b * sin, mask)
    _store(out_row + at + APART, b * cos + a * sin, mask)
    if REST:
        _store(out_row + head * HEAD_DIM + rest, c, rest_mask)


@triton.jit
def _load_gradient(dq_at, dk_at, dv_at, column, mask, is_query, is_key, is_value):
    # Of a head's three loads two are masked out.
    dq = _load(dq_at + column, mask & is_query)
    dk = _load(dk_at + column, mask & is_key)
    return dq + dk + _load(dv_at + column, mask & is_value)


@triton.jit
def _store_sums(
    to, a, b, c, chosen, column, rest, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
    STEP: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    _store(to + column * STEP, tl.sum(tl.where(chosen, a, 0.0), axis=0)[None, :], column < HALF)
    _store(to + column * STEP + APART, tl.sum(tl.where(chosen, b, 0.0), axis=0)[None, :], column < HALF)
    if REST:
        _store(to + rest, tl.sum(tl.where(chosen, c, 0.0), axis=0)[None, :], rest < HEAD_DIM)


@triton.jit(do_not_specialize=["tokens", "tokens_per_program"])
def _backward_kernel(
    dq_pointer, dk_pointer, dv_pointer, x_pointer, out_pointer, cos_pointer, sin_pointer, positions_pointer,
    query_norm_pointer, key_norm_pointer, partial_pointer, tokens, tokens_per_program, dq_stride, dk_stride,
    dv_stride, dq_head_stride, dk_head_stride, dv_head_stride, x_stride, out_stride, cos_stride, sin_stride,
    QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr, NORM_GRADIENTS: tl.constexpr, REST: tl.constexpr, EPS: tl.constexpr, OFFSET: tl.constexpr,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
):  # fmt: skip
    STEP: tl.constexpr = 2 if INTERLEAVED else 1
    APART: tl.constexpr = 1 if INTERLEAVED else HALF
    # int64: a head's stride may be that of all tokens.
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    rest = tl.arange(0, REST_BLOCK)[None, :] + 2 * HALF
    half_mask, rest_mask = column < HALF, rest < HEAD_DIM
    is_head = head < QUERY_HEADS + 2 * KEY_HEADS
    is_query, is_value = head < QUERY_HEADS, head >= QUERY_HEADS + KEY_HEADS
    is_key = (head >= QUERY_HEADS) & (head < QUERY_HEADS + KEY_HEADS)
    at, rest_at = head * HEAD_DIM + column * STEP, head * HEAD_DIM + rest
    if NORM:
        query, key = query_norm_pointer, key_norm_pointer
        weight_a = _load_weight(query, key, is_query, column * STEP, half_mask, OFFSET)
        weight_b = _load_weight(query, key, is_query, column * STEP + APART, half_mask, OFFSET)
        weight_c = _load_weight(query, key, is_query, rest, rest_mask, OFFSET)
    sum_a = tl.zeros((HEADS, HALF_BLOCK), dtype=tl.float32)
    sum_b = tl.zeros((HEADS, HALF_BLOCK), dtype=tl.float32)
    sum_c = tl.zeros((HEADS, REST_BLOCK), dtype=tl.float32)
    for step in range(tokens_per_program):
        token = tl.program_id(0).to(tl.int64) * tokens_per_program + step
        live = is_head & (token < tokens)
        position = tl.load(positions_pointer + token, mask=token < tokens, other=0).to(tl.int64)
        cos = _load(cos_pointer + position * cos_stride + column, half_mask)
        sin = _load(sin_pointer + position * sin_stride + column, half_mask)
        cos, sin = tl.where(is_value, 1.0, cos), tl.where(is_value, 0.0, sin)
        dq_at = dq_pointer + token * dq_stride + head * dq_head_stride
        dk_at = dk_pointer + token * dk_stride + (head - QUERY_HEADS) * dk_head_stride
        dv_at = dv_pointer + token * dv_stride + (head - QUERY_HEADS - KEY_HEADS) * dv_head_stride
        out_row = out_pointer + token * out_stride
        half_live, rest_live = live & half_mask, live & rest_mask
        da = _load_gradient(dq_at, dk_at, dv_at, column * STEP, half_live, is_query, is_key, is_value)
        db = _load_gradient(dq_at, dk_at, dv_at, column * STEP + APART, half_live, is_query, is_key, is_value)
        ua, ub = da * cos + db * sin, db * cos - da * sin
        if REST:
            uc = _load_gradient(dq_at, dk_at, dv_at, rest, rest_live, is_query, is_key, is_value)
        if NORM:
            x_row, normed = x_pointer + token * x_stride, live & (is_value == 0)
            a, b = _load(x_row + at, normed & half_mask), _load(x_row + at + APART, normed & half_mask)
            squares = tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)
            if REST:
                c = _load(x_row + rest_at, normed & rest_mask)
                squares += tl.sum(c * c, axis=1)
            r = tl.rsqrt(squares / HEAD_DIM + EPS)[:, None]
            a, b = a * r, b * r
            mean = tl.sum(ua * weight_a * a, axis=1) + tl.sum(ub * weight_b * b, axis=1)
            if REST:
                c *= r
                mean += tl.sum(uc * weight_c * c, axis=1)
            mean = (mean / HEAD_DIM)[:, None]
            if NORM_GRADIENTS:
                sum_a += ua * a
                sum_b += ub * b
                if REST:
                    sum_c += uc * c
            ua = tl.where(is_value, ua, r * (ua * weight_a - a * mean))
            ub = tl.where(is_value, ub, r * (ub * weight_b - b * mean))
            if REST:
                uc = tl.where(is_value, uc, r * (uc * weight_c - c * mean))
        _store(out_row + at, ua, half_live)
        _store(out_row + at + APART, ub, half_live)
        if REST:
            _store(out_row + rest_at, uc, rest_live)
    if NORM_GRADIENTS:
        program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        to = partial_pointer + program * (2 * HEAD_DIM)
        _store_sums(to, sum_a, sum_b, sum_c, is_query, column, rest, HEAD_DIM, HALF, REST, STEP, APART)
        _store_sums(
            to + HEAD_DIM, sum_a, sum_b, sum_c, is_key, column, rest, HEAD_DIM, HALF, REST, STEP, APART
        )


def block_shape(heads: int, head_dim: int, rotary_dim: int) -> dict[str, int]:
    """Heads of one program, columns of its tiles (powers of two) and its warps, of `heads` heads in all.

    1,024 elements of each half, 8 a thread: one 16-byte load in 16-bit dtypes. Half as many heads where that leaves
    fewer lanes idle (40 heads: 5 times 8, not 3 times 16).
    """
    half = max(16, 1 << (rotary_dim // 2 - 1).bit_length())
    rest = max(16, 1 << max(0, head_dim - rotary_dim - 1).bit_length())
    most = max(2, min(1024 // half, 1 << (heads - 1).bit_length()))
    group = min((most, most // 2), key=lambda size: -(-heads // size) * size)
    warps = max(1, min(4, group * half // 256))
    return {"HEADS": group, "HALF_BLOCK": half, "REST_BLOCK": rest, "num_warps": warps}
