"""RMS normalisation over the last dimension, for the Llama and the Gemma way of rounding.

    r_t = (mean_h x_th^2 + eps)^(-1/2)        n_th = x_th r_t        y_th = n_th (w_h + c)

    u = dy (w + c)        dx = r (u - n mean_h(u n))        dw = sum_t dy n

T rows, H columns; x, dy, dx (T, H); w, dw (H,); r (T,) in float32. c is 0 (Llama) or 1 (Gemma).
Order of rounding: Llama rounds n to x's dtype and then multiplies by w (the result takes the wider dtype of
the two); Gemma multiplies in float32 and rounds once, to x's dtype. Source: Zhang and Sennrich 2019,
arXiv:1910.07467; the gradient was checked against central differences in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.layout import as_rows
from studio_kernels.support import Op, Support

CAST_THEN_SCALE = "cast_then_scale"
SCALE_THEN_CAST = "scale_then_cast"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 16384
"""Widest row: one program holds a whole row, 32 float32 registers a thread with 16 warps."""
PARTIALS = 256
"""Programs that share dw's rows. A constant, so that the order of the sum depends on the shapes alone."""


def reference(
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


@triton.jit(do_not_specialize=["rows"])
def _forward_kernel(
    x_pointer, weight_pointer, y_pointer, r_pointer, rows, columns, x_stride,
    EPS: tl.constexpr, OFFSET: tl.constexpr, CAST_FIRST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    row_mask = row < rows
    column_mask = column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    x = tl.load(x_pointer + row[:, None] * x_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_pointer + column, mask=column_mask, other=0.0).to(tl.float32) + OFFSET
    r = tl.rsqrt(tl.sum(x * x, axis=1) / columns + EPS)
    normal = x * r[:, None]
    if CAST_FIRST:
        normal = normal.to(x_pointer.dtype.element_ty).to(tl.float32)
    y = normal * weight[None, :]
    y_at = y_pointer + row[:, None] * columns + column[None, :]
    tl.store(y_at, y.to(y_pointer.dtype.element_ty), mask=mask)
    tl.store(r_pointer + row, r, mask=row_mask)


@triton.jit(do_not_specialize=["rows", "blocks_per_program"])
def _backward_kernel(
    dy_pointer, x_pointer, weight_pointer, r_pointer, dx_pointer, partial_pointer, rows, columns, dy_stride,
    x_stride, blocks_per_program,
    OFFSET: tl.constexpr, WEIGHT_GRADIENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    column_mask = column < columns
    weight = tl.load(weight_pointer + column, mask=column_mask, other=0.0).to(tl.float32) + OFFSET
    partial = tl.zeros((COLUMNS,), dtype=tl.float32)
    for block in range(blocks_per_program):
        row = (program * blocks_per_program + block) * ROWS + tl.arange(0, ROWS)
        row_mask = row < rows
        mask = row_mask[:, None] & column_mask[None, :]
        x = tl.load(x_pointer + row[:, None] * x_stride + column[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
        dy = tl.load(dy_pointer + row[:, None] * dy_stride + column[None, :], mask=mask, other=0.0).to(
            tl.float32
        )
        r = tl.load(r_pointer + row, mask=row_mask, other=0.0)
        normal = x * r[:, None]
        u = dy * weight[None, :]
        mean = tl.sum(u * normal, axis=1) / columns
        dx = r[:, None] * (u - normal * mean[:, None])
        dx_at = dx_pointer + row[:, None] * columns + column[None, :]
        tl.store(dx_at, dx.to(dx_pointer.dtype.element_ty), mask=mask)
        if WEIGHT_GRADIENT:
            partial += tl.sum(dy * normal, axis=0)
    if WEIGHT_GRADIENT:
        tl.store(partial_pointer + program * columns + column, partial, mask=column_mask)


def block_shape(columns: int) -> dict[str, int]:
    """Rows and columns of one program's block (powers of two) and its warps, for rows of `columns` elements.

    Rows of 64 to 512 elements (query and key norms) share a program, up to 2,048 elements together.
    """
    columns_block = max(16, 1 << (columns - 1).bit_length())
    rows_block = max(1, min(32, 2048 // columns_block))
    warps = max(4, min(16, columns_block // 512))
    return {"ROWS": rows_block, "COLUMNS": columns_block, "num_warps": warps}


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float, offset: int, order: str) -> Tensor:
        x_rows, weight = as_rows(x), weight.contiguous()
        rows, columns = x_rows.shape
        cast_first = order == CAST_THEN_SCALE
        dtype = torch.promote_types(x.dtype, weight.dtype) if cast_first else x.dtype
        y = torch.empty(x.shape, dtype=dtype, device=x.device)
        r = torch.empty(rows, dtype=torch.float32, device=x.device)
        block = block_shape(columns)
        with torch.cuda.device_of(x):
            _forward_kernel[(-(-rows // block["ROWS"]),)](
                x_rows, weight, y, r, rows, columns, x_rows.stride(0),
                EPS=eps, OFFSET=offset, CAST_FIRST=cast_first, **block,
            )  # fmt: skip
        ctx.save_for_backward(x, weight, r)
        ctx.offset = offset
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, r = ctx.saved_tensors
        x_rows, dy_rows = as_rows(x), as_rows(dy)
        rows, columns = x_rows.shape
        trained = ctx.needs_input_grad[1]
        block = block_shape(columns)
        blocks = -(-rows // block["ROWS"])
        blocks_per_program = -(-blocks // PARTIALS) if trained else 1
        programs = -(-blocks // max(1, blocks_per_program))
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        # Without a trained weight nothing is stored through this pointer: any tensor will do.
        partial = torch.empty(programs, columns, dtype=torch.float32, device=x.device) if trained else r
        with torch.cuda.device_of(x):
            _backward_kernel[(programs,)](
                dy_rows, x_rows, weight, r, dx, partial, rows, columns, dy_rows.stride(0), x_rows.stride(0),
                blocks_per_program, OFFSET=ctx.offset, WEIGHT_GRADIENT=trained, **block,
            )  # fmt: skip
        return dx, partial.sum(0).to(weight.dtype) if trained else None, None, None, None


def fused(
    x: Tensor,  # (..., H)
    weight: Tensor,  # (H,)
    eps: float,
    offset: int = 0,
    order: str = CAST_THEN_SCALE,
) -> Tensor:  # (..., H)
    """`reference` in one kernel each way; run-to-run equal bits, dw only where `weight` needs it."""
    return _RmsNorm.apply(x, weight, eps, offset, order)


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether `fused` may be used on rows of `width` elements of `dtype` on such a device."""
    if not 1 <= width <= MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


RMS_NORM = Op(name="rms_norm", reference=reference, triton=fused, supports=supports)
