"""RMS normalisation over the last dimension, for the Llama and the Gemma way of rounding, with the adds around it.

    s = x + residual      r_t = (mean_h s_th^2 + eps)^(-1/2)      n_th = s_th r_t      y_th = n_th (w_h + c) + add_th

    u = dy (w + c)        dx = r (u - n mean_h(u n)) + ds        dw = sum_t dy n

T rows, H columns; x, s, y, dy, dx (T, H); w, dw (H,); r (T,) in float32. c is 0 (Llama) or 1 (Gemma); s is the residual
stream and ds its gradient from further on; `add` is for families that normalise a branch's result before adding it.
Order of rounding: Llama rounds n to x's dtype and then multiplies by w (the result takes the wider dtype of
the two); Gemma multiplies in float32 and rounds once, to x's dtype. Source: Zhang and Sennrich 2019,
arXiv:1910.07467; the gradient was checked against central differences in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from studio_kernels._triton import gpu_support
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.rms_norm_kernels import _backward_kernel, _forward_kernel
from studio_kernels.row_blocks import block_shape, share_rows
from studio_kernels.row_layout import as_rows
from studio_kernels.test_inputs import Draws
from studio_kernels.tuned_configs import choose

CAST_THEN_SCALE = "cast_then_scale"
SCALE_THEN_CAST = "scale_then_cast"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 16384
"""Widest row: one program holds a whole row, 32 float32 registers a thread with 16 warps."""


def compose(
    x: Tensor,  # (..., H)
    weight: Tensor,  # (H,)
    eps: float,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
) -> Tensor:  # (..., H)
    """The composed form, in float32 inside (float64 for float64 input), with transformers' own roundings."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x_wide = x.to(wide)
    normal = x_wide * torch.rsqrt(x_wide.pow(2).mean(-1, keepdim=True) + eps)
    if order == CAST_THEN_SCALE:
        return (weight + offset if offset else weight) * normal.to(x.dtype)
    return (normal * (offset + weight.to(wide))).to(x.dtype)


def reference_forward(
    x: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    eps: float,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    *,
    residual: Tensor | None = None,  # (T, H)
    add: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
) -> tuple[Tensor, Tensor, Tensor]:
    """y (T, H), written to `out` where given, s (T, H), which is x without `residual`, and r (T,)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    s = x if residual is None else x + residual
    # The norm reads 16-bit rows as float32 on the way: no float32 copy of them is written.
    r = torch.linalg.vector_norm(s, dim=-1, dtype=wide).square_().div_(s.shape[-1]).add_(eps).rsqrt_()
    y = torch.empty(s.shape, dtype=result_dtype(s, weight, order), device=s.device) if out is None else out
    if order == CAST_THEN_SCALE:
        normal = torch.mul(s, r[:, None], out=y if y.dtype == s.dtype else torch.empty_like(s))
        torch.mul(normal, weight + offset if offset else weight, out=y)
    else:
        torch.mul(s * r[:, None], weight.to(wide) + offset, out=y)
    return y if add is None else y.add_(add), s, r


def reference_backward(
    dy: Tensor,  # (T, H)
    s: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    r: Tensor,  # (T,)
    offset: int = 0,
    *,
    ds: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
    weight_gradient: Tensor | None = None,  # (H,)
) -> Tensor:  # (T, H)
    """dx, written to `out` where given (it may be dy or ds); adds dw to `weight_gradient` where given."""
    r, scale = r[:, None], weight.to(r.dtype) + offset
    if weight_gradient is not None:
        weight_gradient.add_((dy * r).mul_(s).sum(0))
    # dx = r (u + s c), c = -r^2 mean(u s): u is the one copy in float32, and what reads it last also rounds.
    u = dy * scale
    along = (u * s).sum(-1, keepdim=True).mul_(r.square()).div_(-s.shape[-1])
    u.addcmul_(s, along)
    dx = torch.empty_like(s) if out is None else out
    return torch.mul(u, r, out=dx) if ds is None else torch.addcmul(ds, u, r, out=dx)


def result_dtype(x: Tensor, weight: Tensor, order: str) -> torch.dtype:
    """The dtype of y."""
    return torch.promote_types(x.dtype, weight.dtype) if order == CAST_THEN_SCALE else x.dtype


def fused_forward(
    x: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    eps: float,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    *,
    residual: Tensor | None = None,  # (T, H)
    add: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference_forward` in one kernel."""
    rows, columns = x.shape
    y = torch.empty(x.shape, dtype=result_dtype(x, weight, order), device=x.device) if out is None else out
    s = x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    r = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = choose("rms_norm", columns, block_shape(columns), x.device)
    residual_rows, add_rows = x if residual is None else residual, x if add is None else add
    with torch.cuda.device_of(x):
        _forward_kernel[(-(-rows // block["ROWS"]),)](
            x, residual_rows, add_rows, weight, y, s, r, rows, columns, x.stride(0), residual_rows.stride(0),
            add_rows.stride(0), y.stride(0), s.stride(0), EPS=eps, OFFSET=offset,
            CAST_FIRST=order == CAST_THEN_SCALE, RESIDUAL=residual is not None, ADD=add is not None, **block,
        )  # fmt: skip
    return y, s, r


def fused_backward(
    dy: Tensor,  # (T, H)
    s: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    r: Tensor,  # (T,)
    offset: int = 0,
    *,
    ds: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
    weight_gradient: Tensor | None = None,  # (H,)
) -> Tensor:  # (T, H)
    """`reference_backward` in one kernel, and two short ones where the weight is trained; run-to-run equal bits."""
    rows, columns = s.shape
    block = choose("rms_norm", columns, block_shape(columns), s.device)
    trained = weight_gradient is not None
    programs, blocks = share_rows(rows, columns, block["ROWS"]) if trained else (-(-rows // block["ROWS"]), 1)
    dx = torch.empty(s.shape, dtype=s.dtype, device=s.device) if out is None else out
    # Without a trained weight nothing is stored through this pointer: any tensor will do.
    partial = torch.empty(programs, columns, dtype=torch.float32, device=s.device) if trained else r
    ds_rows = dy if ds is None else ds
    with torch.cuda.device_of(s):
        _backward_kernel[(programs,)](
            dy, s, weight, r, ds_rows, dx, partial, rows, columns, dy.stride(0), s.stride(0), ds_rows.stride(0),
            dx.stride(0), blocks, OFFSET=offset, DS=ds is not None, WEIGHT_GRADIENT=trained, **block,
        )  # fmt: skip
    if trained:
        weight_gradient.add_(partial.sum(0))
    return dx


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float, offset: int, order: str) -> Tensor:
        y, _, r = fused_forward(as_rows(x), weight.contiguous(), eps, offset, order)
        ctx.save_for_backward(x, weight, r)
        ctx.offset = offset
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, r = ctx.saved_tensors
        dw = torch.zeros(weight.shape, dtype=r.dtype, device=r.device) if ctx.needs_input_grad[1] else None
        dx = fused_backward(as_rows(dy), as_rows(x), weight.contiguous(), r, ctx.offset, weight_gradient=dw)
        return dx.view(x.shape), None if dw is None else dw.to(weight.dtype), None, None, None


def fused(
    x: Tensor,  # (..., H)
    weight: Tensor,  # (H,)
    eps: float,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
) -> Tensor:  # (..., H)
    """`compose` in one kernel each way; run-to-run equal bits, dw only where `weight` needs it."""
    return _RmsNorm.apply(x, weight, eps, offset, order)


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on rows of `width` elements of `dtype` on such a device."""
    if not 1 <= width <= MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    weight_dtype: torch.dtype | None = None,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
    layout: str = "contiguous",
    scale: float = 1.0,
    trained: bool = True,
    through_autograd: bool = False,
    residual: bool = False,
    add: bool = False,
    stream: bool = False,
    padding: int = 0,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. `stream` brings a gradient of the residual stream; results lie in rows `padding` longer."""
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    x, branch = draws.normal(rows, width, scale=scale), draws.normal(rows, width)
    weight = draws.normal(width, scale=0.2, mean=1.0 - offset, dtype=weight_dtype)
    y_dtype = torch.promote_types(dtype, weight_dtype or dtype) if order == CAST_THEN_SCALE else dtype
    dy, ds = draws.upstream(rows, width, dtype=y_dtype), draws.normal(rows, width)

    def make_room(dtype: torch.dtype) -> Tensor | None:
        whole = torch.empty(rows, width + padding, dtype=torch.float64 if wide else dtype, device=device)
        return whole[:, :width] if padding else None

    def run(implementation: Implementation) -> dict[str, Tensor]:
        if through_autograd:
            leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_(trained)]
            y = implementation(*leaves, 1e-6, offset, order)
            gradients = torch.autograd.grad(y, [leaf for leaf in leaves if leaf.requires_grad], dy)
            return dict(zip(("y", "dx", "dw"), (y.detach(), *gradients), strict=False))
        y, s, r = implementation.forward(
            x, weight, 1e-6, offset, order, residual=branch if residual else None, add=branch if add else None,
            out=make_room(y_dtype),
        )  # fmt: skip
        dw = torch.ones(width, dtype=r.dtype, device=r.device) if trained else None
        dx = implementation.backward(
            dy, s, weight, r, offset, ds=ds if stream else None, out=make_room(dtype), weight_gradient=dw
        )
        return {"y": y, "s": s, "r": r, "dx": dx} | ({"dw": dw} if trained else {})

    return run


RMS_NORM = Op(
    name="rms_norm",
    reference=Implementation(forward=reference_forward, backward=reference_backward, apply=compose),
    triton=Implementation(forward=fused_forward, backward=fused_backward, apply=fused),
    supports=supports,
    sample=sample,
)
