"""Layer normalisation over the last dimension, with the residual's add before it.

    s = x + residual      m_t = mean_h s_th      r_t = (mean_h (s_th - m_t)^2 + eps)^(-1/2)      n_th = (s_th - m_t) r_t

    y = n w + b           u = dy w               dx = r (u - mean_h u - n mean_h(u n)) + ds
    dw = sum_t dy n       db = sum_t dy

T rows, H columns; x, s, y, dy, dx (T, H); w, b and their gradients (H,); m, r (T,) in float32. s is the residual stream
and ds its gradient from further on; b may be missing, as in Cohere's models. All in float32 and rounded once. Source:
Ba, Kiros and Hinton 2016, arXiv:1607.06450; the gradient was checked against central differences in float64. PyTorch's
own kernel is good; ours saves the pass over the residual stream in each direction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from studio_kernels._triton import gpu_support
from studio_kernels.layer_norm_kernels import _backward_kernel, _forward_kernel
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.row_blocks import block_shape, share_rows
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 16384
"""Widest row: one program holds a whole row, 32 float32 registers a thread with 16 warps."""


def reference_forward(
    x: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    bias: Tensor | None,  # (H,)
    eps: float,
    *,
    residual: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y (T, H), written to `out` where given, s (T, H), which is x without `residual`, mean (T,) and r (T,)."""
    s = x if residual is None else x + residual
    wide = torch.promote_types(x.dtype, torch.float32)
    # On a GPU the weights must have the input's dtype, and mean and r come in float32; a processor gives those two in
    # the dtype of the weights.
    kept = wide if s.device.type == "cpu" else s.dtype
    y, mean, r = torch.native_layer_norm(
        s, s.shape[-1:], weight.to(kept), None if bias is None else bias.to(kept), eps
    )
    return y if out is None else out.copy_(y), s, mean.view(-1).to(wide), r.view(-1).to(wide)


def reference_backward(
    dy: Tensor,  # (T, H)
    s: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    mean: Tensor,  # (T,)
    r: Tensor,  # (T,)
    *,
    ds: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
    weight_gradient: Tensor | None = None,  # (H,)
    bias_gradient: Tensor | None = None,  # (H,)
) -> Tensor:  # (T, H)
    """dx, written to `out` where given (it may be dy or ds); adds dw and db to the gradients that are given."""
    mean, r = mean[:, None], r[:, None]
    normal = (s - mean).mul_(r)
    if weight_gradient is not None:
        weight_gradient.add_((dy * normal).sum(0))
    if bias_gradient is not None:
        bias_gradient.add_(dy.sum(0, dtype=r.dtype))
    u = dy * weight.to(r.dtype)
    along = (u * normal).mean(-1, keepdim=True).neg_()
    u.sub_(u.mean(-1, keepdim=True)).addcmul_(normal, along)
    dx = torch.empty_like(s) if out is None else out
    return torch.mul(u, r, out=dx) if ds is None else torch.addcmul(ds, u, r, out=dx)


def compose(
    x: Tensor,  # (..., H)
    weight: Tensor,  # (H,)
    bias: Tensor | None,  # (H,)
    eps: float,
) -> Tensor:  # (..., H)
    """The differentiable form: PyTorch's own."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def fused_forward(
    x: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    bias: Tensor | None,  # (H,)
    eps: float,
    *,
    residual: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`reference_forward` in one kernel."""
    rows, columns = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    s = x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    # Two tensors: where one began within another, its alignment and with it the compiled kernel would depend on T.
    mean, r = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    block = block_shape(columns)
    # What is not there is not read through its pointer: any tensor will do.
    residual_rows, bias_columns = x if residual is None else residual, weight if bias is None else bias
    with torch.cuda.device_of(x):
        _forward_kernel[(-(-rows // block["ROWS"]),)](
            x, residual_rows, weight, bias_columns, y, s, mean, r, rows, columns, x.stride(0),
            residual_rows.stride(0), y.stride(0), s.stride(0), EPS=eps, RESIDUAL=residual is not None,
            BIAS=bias is not None, **block,
        )  # fmt: skip
    return y, s, mean, r


def fused_backward(
    dy: Tensor,  # (T, H)
    s: Tensor,  # (T, H)
    weight: Tensor,  # (H,)
    mean: Tensor,  # (T,)
    r: Tensor,  # (T,)
    *,
    ds: Tensor | None = None,  # (T, H)
    out: Tensor | None = None,  # (T, H)
    weight_gradient: Tensor | None = None,  # (H,)
    bias_gradient: Tensor | None = None,  # (H,)
) -> Tensor:  # (T, H)
    """`reference_backward` in one kernel, and short ones for what is trained; run-to-run equal bits."""
    rows, columns = s.shape
    block = block_shape(columns)
    trained = weight_gradient is not None or bias_gradient is not None
    programs, blocks = share_rows(rows, columns, block["ROWS"]) if trained else (-(-rows // block["ROWS"]), 1)
    dx = torch.empty(s.shape, dtype=s.dtype, device=s.device) if out is None else out
    ds_rows = dy if ds is None else ds
    partials = [
        torch.empty(programs, columns, dtype=r.dtype, device=s.device) if trained else r for _ in range(2)
    ]
    with torch.cuda.device_of(s):
        _backward_kernel[(programs,)](
            dy, s, weight, mean, r, ds_rows, dx, *partials, rows, columns, dy.stride(0), s.stride(0),
            ds_rows.stride(0), dx.stride(0), blocks, DS=ds is not None, GRADIENTS=trained, **block,
        )  # fmt: skip
    for gradient, partial in zip((weight_gradient, bias_gradient), partials, strict=True):
        if gradient is not None:
            gradient.add_(partial.sum(0))
    return dx


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
    layout: str = "contiguous",
    scale: float = 1.0,
    mean: float = 0.0,
    bias: bool = True,
    trained: bool = True,
    residual: bool = False,
    stream: bool = False,
    padding: int = 0,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. `stream` brings a gradient of the residual stream; results lie in rows `padding` longer."""
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    x, branch = draws.normal(rows, width, scale=scale, mean=mean), draws.normal(rows, width)
    weight, shift = draws.normal(width, scale=0.2, mean=1.0), draws.normal(width, scale=0.2)
    dy, ds = draws.upstream(rows, width), draws.normal(rows, width)

    def make_room() -> Tensor | None:
        return x.new_empty(rows, width + padding)[:, :width] if padding else None

    def run(implementation: Implementation) -> dict[str, Tensor]:
        y, s, average, r = implementation.forward(
            x, weight, shift if bias else None, 1e-5, residual=branch if residual else None, out=make_room()
        )
        # Gradients are added to what is there.
        gradients = torch.ones(2, width, dtype=r.dtype, device=r.device) if trained else (None, None)
        dx = implementation.backward(
            dy, s, weight, average, r, ds=ds if stream else None, out=make_room(), weight_gradient=gradients[0],
            bias_gradient=gradients[1] if bias else None,
        )  # fmt: skip
        results = {"y": y, "s": s, "mean": average, "r": r, "dx": dx}
        return results | ({"dw": gradients[0], "db": gradients[1]} if trained else {})

    return run


LAYER_NORM = Op(
    name="layer_norm",
    reference=Implementation(forward=reference_forward, backward=reference_backward, apply=compose),
    triton=Implementation(forward=fused_forward, backward=fused_backward),
    supports=supports,
    sample=sample,
    used=False,  # until a decoder's block has this norm
)
