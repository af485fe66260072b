"""Rotary position embedding of all query and key heads in one launch, with the heads' RMS norms where a model has them.

    a' = a cos(p) - b sin(p)        b' = b cos(p) + a sin(p)        a = x[i], b = x[i + d_r / 2], i < d_r / 2
                                                        interleaved: a = x[2 i], b = x[2 i + 1]

Backward is the transpose, a = a' cos + b' sin, b = b' cos - a' sin, by the same tables: their factor (YaRN) is not
inverted. Where x = n (w + c), n = z r, r = (mean z^2 + eps)^(-1/2):  u = dx (w + c),  dz = r (u - n mean(u n)).

T tokens; a row of the joint projection holds nq query, nk key and nk value heads of width d, one after another. The
tables cos and sin (P, d_r) are transformers' own: both halves equal, scaling factor included; a token reads the row
that its position names. Columns from d_r on are not rotated (partial rotary). Numbers are float32 inside and rounded
once, at the store; with CAST_THEN_SCALE n is rounded before the weight meets it, too (see `rms_norm`).
Source: Su et al. 2021, arXiv:2104.09864, in the rotate-half convention of Llama or, `interleaved`, in its own (GPT-J,
GLM, Cohere), whose pairs are neighbours; the tables are of the same layout for both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from studio_kernels._triton import gpu_support
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.rms_norm import CAST_THEN_SCALE
from studio_kernels.rope_kernels import _backward_kernel, _forward_kernel, block_shape
from studio_kernels.test_inputs import Draws, lay_out
from studio_kernels.tuned_configs import choose

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 2**20
"""Columns of a joint row; with the narrowest heads still fewer programs than a launch grid's second axis takes."""
PARTIALS = 128
"""Programs that share the tokens of the norms' gradients. A constant, so that the order of the sum is fixed."""


def reference_forward(
    qkv: Tensor,  # (T, >= (nq + 2 nk) d), any row stride
    cos: Tensor,  # (P, d_r) float32
    sin: Tensor,  # (P, d_r) float32
    positions: Tensor,  # (T,) int32, each below P
    query_heads: int,
    key_heads: int,
    head_dim: int,
    *,
    query_norm: Tensor | None = None,  # (d,)
    key_norm: Tensor | None = None,  # (d,)
    eps: float = 0.0,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    interleaved: bool = False,
    out: Tensor | None = None,  # (T, >= (nq + nk) d), any row stride
) -> Tensor:
    """Rotate the query and key heads: in place without norms (returns `qkv`), else into `out` (`qkv` stays raw).

    With norms each query and key head is normalised over its d columns first. `out` is made where it is missing.
    """
    heads = query_heads + key_heads
    x = _heads(qkv, heads, head_dim)
    cos, sin = _table_rows(cos, sin, positions, x.dtype)
    if query_norm is None and out is None:
        _rotate(x, cos, sin, x, interleaved)
        return qkv
    if out is None:
        out = torch.empty(len(qkv), heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    if query_norm is not None:
        x = _normalise(x, eps, order) * _head_weights(query_norm, key_norm, query_heads, key_heads, offset, x)
    y, rotary_dim = _heads(out, heads, head_dim), 2 * cos.shape[-1]
    _rotate(x, cos, sin, y, interleaved)
    y[..., rotary_dim:] = x[..., rotary_dim:]
    return out


def reference_backward(
    dq: Tensor,  # (T, nq, d), any strides but 1 in the last dimension
    dk: Tensor,  # (T, nk, d)
    dv: Tensor,  # (T, nk, d)
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    query_heads: int,
    key_heads: int,
    head_dim: int,
    *,
    qkv: Tensor | None = None,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    interleaved: bool = False,
    out: Tensor,  # (T, >= (nq + 2 nk) d), any row stride
    norm_gradients: tuple[Tensor, Tensor] | None = None,  # (d,) float32 each
) -> Tensor:
    """The gradient of the joint projection's rows, written to `out` as dq | dk | dv; further columns are left alone.

    Norms need `qkv`, the raw rows; `out` may be those rows themselves. Their weights' gradients are added to
    `norm_gradients` (query, key) where given. `order` does not matter here: roundings have no gradient.
    """
    cos, sin = _table_rows(cos, sin, positions, dq.dtype)
    sin, rotary_dim, heads = -sin, 2 * cos.shape[-1], query_heads + key_heads
    packed = _heads(out, heads + key_heads, head_dim)
    parts = ((dq, slice(0, query_heads), query_norm, 0), (dk, slice(query_heads, heads), key_norm, 1))
    for dy, part, weight, index in parts:
        dx = packed[:, part]
        if weight is None:
            _rotate(dy, cos, sin, dx, interleaved)
            dx[..., rotary_dim:] = dy[..., rotary_dim:]
            continue
        wide = torch.promote_types(dy.dtype, torch.float32)
        u = dy.to(wide, copy=True)
        _rotate(u, cos, sin, u, interleaved)
        x = _heads(qkv, heads, head_dim)[:, part].to(wide)
        r = torch.rsqrt(x.square().mean(-1, keepdim=True).add_(eps))
        normal = x * r
        if norm_gradients is not None:
            norm_gradients[index].add_((u * normal).sum((0, 1)))
        u *= weight.detach().to(wide) + offset
        normal *= (u * normal).mean(-1, keepdim=True)
        torch.mul(u.sub_(normal), r, out=dx)
    packed[:, heads:] = dv
    return out


def _heads(rows: Tensor, heads: int, head_dim: int) -> Tensor:
    """The first columns of rows (T, width) as (T, heads, d), a view."""
    return rows[:, : heads * head_dim].unflatten(-1, (heads, head_dim))


def _table_rows(
    cos: Tensor, sin: Tensor, positions: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:  # (T, 1, d_r / 2) each
    """Each token's cosines and sines, in float32 (float64 for float64 input)."""
    half, wide = cos.shape[-1] // 2, torch.promote_types(dtype, torch.float32)
    return tuple(table[:, :half].index_select(0, positions).to(wide).unsqueeze(1) for table in (cos, sin))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, interleaved: bool) -> None:
    """Rotate the first d_r columns of each head of x (T, heads, d) into `out`, which may be x."""
    half = cos.shape[-1]
    first, second = slice(0, half), slice(half, 2 * half)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = x[..., first], x[..., second]
    # Mixed dtypes are computed in the wider one; five passes, and out's b is written when only a is still needed.
    rotated = (a * cos).addcmul_(b, sin, value=-1)
    torch.addcmul(b * cos, a, sin, out=out[..., second])
    out[..., first] = rotated


def _normalise(x: Tensor, eps: float, order: str) -> Tensor:
    """x over its last dimension's root mean square, in float32 or, with the norm rounding first, in x's dtype."""
    if order == CAST_THEN_SCALE:
        return functional.rms_norm(x, x.shape[-1:], eps=eps)
    return functional.rms_norm(x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[-1:], eps=eps)


def _head_weights(
    query_norm: Tensor, key_norm: Tensor, query_heads: int, key_heads: int, offset: int, x: Tensor
) -> Tensor:  # (nq + nk, d)
    """Each head's norm weight plus `offset`, at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    weights = (query_norm.detach().expand(query_heads, -1), key_norm.detach().expand(key_heads, -1))
    return torch.cat(weights).to(wide) + offset


def fused_forward(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    query_heads: int,
    key_heads: int,
    head_dim: int,
    *,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    interleaved: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """`reference_forward` in one kernel."""
    heads, rotary_dim, norm = query_heads + key_heads, cos.shape[-1], query_norm is not None
    in_place = out is None and not norm
    if in_place:
        out = qkv
    elif out is None:
        out = torch.empty(len(qkv), heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    block = choose("rope", head_dim, block_shape(heads, head_dim, rotary_dim), qkv.device)
    with torch.cuda.device_of(qkv):
        _forward_kernel[(len(qkv), -(-heads // block["HEADS"]))](
            qkv, out, cos, sin, positions, query_norm if norm else cos, key_norm if norm else cos,
            qkv.stride(0), out.stride(0), cos.stride(0), sin.stride(0),
            QUERY_HEADS=query_heads, ALL_HEADS=heads, HEAD_DIM=head_dim, HALF=rotary_dim // 2, NORM=norm,
            REST=rotary_dim < head_dim and not in_place, EPS=eps, OFFSET=offset,
            CAST_FIRST=order == CAST_THEN_SCALE, INTERLEAVED=interleaved, **block,
        )  # fmt: skip
    return out


def fused_backward(
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    query_heads: int,
    key_heads: int,
    head_dim: int,
    *,
    qkv: Tensor | None = None,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    interleaved: bool = False,
    out: Tensor,
    norm_gradients: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """`reference_backward` in one kernel; each program sums its share of the norms' gradients."""
    tokens, heads, rotary_dim = len(dq), query_heads + 2 * key_heads, cos.shape[-1]
    norm = query_norm is not None
    trained = norm and norm_gradients is not None
    block = choose("rope", head_dim, block_shape(heads, head_dim, rotary_dim), dq.device)
    groups = -(-heads // block["HEADS"])
    tokens_per_program = max(1, -(-tokens // PARTIALS)) if trained else 1
    programs = -(-tokens // tokens_per_program)
    partial = cos
    if trained:
        partial = torch.empty(programs * groups, 2, head_dim, dtype=torch.float32, device=dq.device)
    with torch.cuda.device_of(dq):
        _backward_kernel[(programs, groups)](
            dq, dk, dv, qkv if norm else out, out, cos, sin, positions, query_norm if norm else cos,
            key_norm if norm else cos, partial, tokens, tokens_per_program,
            dq.stride(0), dk.stride(0), dv.stride(0), dq.stride(1), dk.stride(1), dv.stride(1),
            qkv.stride(0) if norm else 0, out.stride(0), cos.stride(0), sin.stride(0),
            QUERY_HEADS=query_heads, KEY_HEADS=key_heads, HEAD_DIM=head_dim, HALF=rotary_dim // 2, NORM=norm,
            NORM_GRADIENTS=trained, REST=rotary_dim < head_dim, EPS=eps, OFFSET=offset,
            INTERLEAVED=interleaved, **block,
        )  # fmt: skip
    if trained:
        for gradient, total in zip(norm_gradients, partial.sum(0), strict=True):
            gradient.add_(total)
    return out


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    norms: bool = False,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    heads_first: bool = False,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """`width` columns of queries in heads of at most 128, half as many key heads; see `Op.sample`.

    With `norms` their weights are trained, too. `heads_first`: the gradients from above lie as (heads, T, d), as
    attention returns them. Rows of the projection always lie in wider ones, NaN between them.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide)
    head_dim = max(d for d in range(2, 129, 2) if width % d == 0 or d == 2)
    query_heads = max(1, width // head_dim)
    counts = (query_heads, -(-query_heads // 2), -(-query_heads // 2))
    rotary_dim = rotary_dim or head_dim
    angles = torch.arange(64)[:, None] * 1e4 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim).repeat(2)
    # 1.1: a factor such as YaRN's, which backward must not invert.
    tables = (1.1 * angles.cos()).to(device), (1.1 * angles.sin()).to(device)
    sizes = (*tables, draws.integers(0, 64, rows, dtype=torch.int32), *counts[:2], head_dim)
    raw = draws.normal(rows, sum(counts) * head_dim)
    gradients = [draws.normal(rows, count, head_dim) for count in counts]
    if heads_first:
        gradients = [each.transpose(0, 1).contiguous().transpose(0, 1) for each in gradients]
    options = {"interleaved": interleaved}
    if norms:
        query_norm, key_norm = (draws.normal(head_dim, scale=0.2, mean=1.0 - offset) for _ in range(2))
        options |= dict(query_norm=query_norm, key_norm=key_norm, eps=1e-6, offset=offset, order=order)

    def run(implementation: Implementation) -> dict[str, Tensor]:
        qkv, packed = lay_out(raw, "sliced"), lay_out(torch.full_like(raw, float("nan")), "sliced")
        found = {"rotated": implementation.forward(qkv, *sizes, **options), "packed": packed}
        if norms:
            accumulated = torch.promote_types(raw.dtype, torch.float32)
            sums = torch.zeros(2, head_dim, dtype=accumulated, device=device).unbind()
            found |= {"dquery_norm": sums[0], "dkey_norm": sums[1]}
            options_back = options | {"qkv": qkv, "norm_gradients": sums}
        else:
            options_back = options
        implementation.backward(*gradients, *sizes, out=packed, **options_back)
        return found

    return run


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on joint rows of `width` elements of `dtype` on such a device."""
    if not 1 <= width <= MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


ROPE = Op(
    name="rope",
    reference=Implementation(forward=reference_forward, backward=reference_backward),
    triton=Implementation(forward=fused_forward, backward=fused_backward),
    supports=supports,
    sample=sample,
)
