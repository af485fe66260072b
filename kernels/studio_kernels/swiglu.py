"""The gate of a gated MLP: silu(gate) times up.

    s = 1 / (1 + exp(-g))        h = g s u        du = dh g s        dg = dh u s (1 + g (1 - s))

T rows, I columns; gate g, up u, h and their gradients (T, I). g and u may be the two halves of one (T, 2 I)
tensor, as Phi-3's fused projection returns them: rows are addressed by their stride and nothing is copied.
silu(g) is rounded to the input's dtype before it meets u, as transformers does. Source: Shazeer 2020,
arXiv:2002.05202; the gradient was checked against central differences in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.layout import as_rows
from studio_kernels.support import Op, Support

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 2**26
"""65,535 tiles of 1,024 columns are the most that a launch grid's second axis takes."""


def reference(
    gate: Tensor,  # (..., I)
    up: Tensor,  # (..., I)
) -> Tensor:  # (..., I)
    """The composed form."""
    return functional.silu(gate) * up


@triton.jit(do_not_specialize=["columns"])
def _forward_kernel(
    gate_pointer, up_pointer, h_pointer, columns, gate_stride, up_stride, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    gate = tl.load(gate_pointer + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_pointer + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    silu = (gate * tl.sigmoid(gate)).to(gate_pointer.dtype.element_ty).to(tl.float32)
    tl.store(h_pointer + row * columns + column, (silu * up).to(h_pointer.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["columns"])
def _backward_kernel(
    dh_pointer, gate_pointer, up_pointer, dgate_pointer, dup_pointer, columns, dh_stride, gate_stride, up_stride,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    dh = tl.load(dh_pointer + row * dh_stride + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_pointer + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_pointer + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    dup = dh * gate * sigmoid
    dgate = dh * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    at = row * columns + column
    tl.store(dup_pointer + at, dup.to(dup_pointer.dtype.element_ty), mask=mask)
    tl.store(dgate_pointer + at, dgate.to(dgate_pointer.dtype.element_ty), mask=mask)


def block_shape(columns: int) -> dict[str, int]:
    """Columns of one program's tile and its warps: 8 elements a thread, one 16-byte load in 16-bit dtypes."""
    return {"COLUMNS": max(16, min(1024, 1 << (columns - 1).bit_length())), "num_warps": 4}


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:
        gate_rows, up_rows = as_rows(gate), as_rows(up)
        rows, columns = gate_rows.shape
        h = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        block = block_shape(columns)
        with torch.cuda.device_of(gate):
            _forward_kernel[(rows, -(-columns // block["COLUMNS"]))](
                gate_rows, up_rows, h, columns, gate_rows.stride(0), up_rows.stride(0), **block
            )
        ctx.save_for_backward(gate, up)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, dh: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        gate_rows, up_rows, dh_rows = as_rows(gate), as_rows(up), as_rows(dh)
        rows, columns = gate_rows.shape
        dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        dup = torch.empty(up.shape, dtype=up.dtype, device=up.device)
        block = block_shape(columns)
        with torch.cuda.device_of(gate):
            _backward_kernel[(rows, -(-columns // block["COLUMNS"]))](
                dh_rows, gate_rows, up_rows, dgate, dup, columns,
                dh_rows.stride(0), gate_rows.stride(0), up_rows.stride(0), **block,
            )  # fmt: skip
        return dgate, dup


def fused(
    gate: Tensor,  # (..., I)
    up: Tensor,  # (..., I), same shape and dtype
) -> Tensor:  # (..., I)
    """`reference` in one kernel each way; keeps gate and up for the backward pass, nothing else.

    Raises:
        ValueError: gate and up differ in shape or dtype.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(f"gate is {gate.dtype} {tuple(gate.shape)}, up is {up.dtype} {tuple(up.shape)}")
    return _SwiGlu.apply(gate, up)


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether `fused` may be used on rows of `width` elements of `dtype` on such a device."""
    if not 1 <= width < MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH - 1} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


SWIGLU = Op(name="swiglu", reference=reference, triton=fused, supports=supports)
