"""The gate of a gated MLP: an activation of `gate`, times `up`; for SiLU (SwiGLU) and both forms of GELU (GeGLU).

    h = phi(g) u          du = dh phi(g)          dg = dh u phi'(g)

    silu       phi(g) = g s(g),  s(z) = 1 / (1 + exp(-z))                   phi' = s + g s (1 - s)
    gelu       phi(g) = g P(g),  P(g) = (1 + erf(g / sqrt 2)) / 2           phi' = P + g exp(-g^2 / 2) / sqrt(2 pi)
    gelu_tanh  phi(g) = g s(z),  z = 2 k (g + c g^3), k = sqrt(2 / pi)      phi' = s + g s (1 - s) 2 k (1 + 3 c g^2)

c = 0.044715; the last is the form with tanh, since (1 + tanh x) / 2 = s(2 x). T rows, I columns; gate g, up u, h and
their gradients (T, I). g and u may be the two halves of one (T, 2 I) tensor, as Phi-3's fused projection returns them:
rows are addressed by their stride and nothing is copied. phi(g) is rounded to the input's dtype before it meets u, as
transformers does. Sources: Shazeer 2020, arXiv:2002.05202; Hendrycks and Gimpel 2016, arXiv:1606.08415; the gradients
were checked against central differences in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.row_layout import as_rows
from studio_kernels.test_inputs import Draws
from studio_kernels.tuned_configs import choose

SILU, GELU, GELU_TANH = KINDS = ("silu", "gelu", "gelu_tanh")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 2**26
"""Column offsets are 32 bits wide."""


def activate(gate: Tensor, kind: str) -> Tensor:
    """phi(gate), rounded to gate's dtype."""
    if kind == SILU:
        return functional.silu(gate)
    return functional.gelu(gate, approximate="tanh" if kind == GELU_TANH else "none")


def compose(
    gate: Tensor,  # (..., I)
    up: Tensor,  # (..., I)
    kind: str = SILU,
) -> Tensor:  # (..., I)
    """The composed form."""
    return activate(gate, kind) * up


def reference_forward(
    gate: Tensor,  # (T, I)
    up: Tensor,  # (T, I)
    kind: str = SILU,
    *,
    out: Tensor | None = None,  # (T, I)
) -> Tensor:  # (T, I)
    """h, written to `out` where given."""
    active = activate(gate, kind)
    return active.mul_(up) if out is None else torch.mul(active, up, out=out)


def reference_backward(
    dh: Tensor,  # (T, I)
    gate: Tensor,  # (T, I)
    up: Tensor,  # (T, I)
    kind: str = SILU,
    *,
    dgate: Tensor | None = None,  # (T, I)
    dup: Tensor | None = None,  # (T, I)
    h: Tensor | None = None,  # (T, I)
) -> tuple[Tensor, Tensor, Tensor | None]:
    """dgate and dup, in buffers where given, which may be gate and up; h too where it has one, which may be dh."""
    dgate = torch.empty_like(gate) if dgate is None else dgate
    dup = torch.empty_like(up) if dup is None else dup
    active, slope = activate(gate, kind), dh * up
    product = None if h is None else active * up
    torch.mul(dh, active, out=dup)
    if kind == SILU:
        torch.ops.aten.silu_backward.grad_input(slope, gate, grad_input=dgate)
    else:
        form = "tanh" if kind == GELU_TANH else "none"
        torch.ops.aten.gelu_backward.grad_input(slope, gate, approximate=form, grad_input=dgate)
    return dgate, dup, None if h is None else h.copy_(product)


@triton.jit
def _activate(gate, KIND: tl.constexpr):
    """phi and phi' of float32 values."""
    if KIND == "gelu":
        share = 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
        slope = share + gate * (tl.exp(-0.5 * gate * gate) * 0.3989422804014327)
    elif KIND == "gelu_tanh":
        share = tl.sigmoid(1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate))
        slope = share + gate * share * (1.0 - share) * (1.5957691216057308 * (1.0 + 0.134145 * gate * gate))
    else:
        share = tl.sigmoid(gate)
        slope = share * (1.0 + gate * (1.0 - share))
    return gate * share, slope


@triton.jit
def _forward_kernel(
    gate_pointer, up_pointer, h_pointer, columns, gate_stride, up_stride, h_stride, KIND: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    gate = tl.load(gate_pointer + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_pointer + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    active, _ = _activate(gate, KIND)
    h = active.to(gate_pointer.dtype.element_ty).to(tl.float32) * up
    tl.store(h_pointer + row * h_stride + column, h.to(h_pointer.dtype.element_ty), mask=mask)


@triton.jit
def _backward_kernel(
    dh_pointer, gate_pointer, up_pointer, dgate_pointer, dup_pointer, h_pointer, columns, dh_stride, gate_stride,
    up_stride, dgate_stride, dup_stride, h_stride, KIND: tl.constexpr, PRODUCT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    dh = tl.load(dh_pointer + row * dh_stride + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_pointer + row * gate_stride + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_pointer + row * up_stride + column, mask=mask, other=0.0).to(tl.float32)
    active, slope = _activate(gate, KIND)
    active = active.to(gate_pointer.dtype.element_ty).to(tl.float32)
    dup = dh * active
    dgate = dh * up * slope
    tl.store(dup_pointer + row * dup_stride + column, dup.to(dup_pointer.dtype.element_ty), mask=mask)
    tl.store(dgate_pointer + row * dgate_stride + column, dgate.to(dgate_pointer.dtype.element_ty), mask=mask)
    if PRODUCT:
        h = active * up
        tl.store(h_pointer + row * h_stride + column, h.to(h_pointer.dtype.element_ty), mask=mask)


def block_shape(columns: int) -> dict[str, int]:
    """Columns of one program's tile and its warps: 8 elements a thread, one 16-byte load in 16-bit dtypes."""
    return {"COLUMNS": max(16, min(1024, 1 << (columns - 1).bit_length())), "num_warps": 4}


def fused_forward(
    gate: Tensor,  # (T, I)
    up: Tensor,  # (T, I)
    kind: str = SILU,
    *,
    out: Tensor | None = None,  # (T, I)
) -> Tensor:  # (T, I)
    """`reference_forward` in one kernel."""
    rows, columns = gate.shape
    h = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if out is None else out
    block = choose("glu", columns, block_shape(columns), gate.device)
    with torch.cuda.device_of(gate):
        _forward_kernel[(rows * -(-columns // block["COLUMNS"]),)](
            gate, up, h, columns, gate.stride(0), up.stride(0), h.stride(0), KIND=kind, **block
        )
    return h


def fused_backward(
    dh: Tensor,  # (T, I)
    gate: Tensor,  # (T, I)
    up: Tensor,  # (T, I)
    kind: str = SILU,
    *,
    dgate: Tensor | None = None,  # (T, I)
    dup: Tensor | None = None,  # (T, I)
    h: Tensor | None = None,  # (T, I)
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`reference_backward` in one kernel."""
    rows, columns = gate.shape
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) if dgate is None else dgate
    dup = torch.empty(up.shape, dtype=up.dtype, device=up.device) if dup is None else dup
    # Where h is not wanted nothing is stored through this pointer: any tensor will do.
    h_rows = dup if h is None else h
    block = choose("glu", columns, block_shape(columns), gate.device)
    with torch.cuda.device_of(gate):
        _backward_kernel[(rows * -(-columns // block["COLUMNS"]),)](
            dh, gate, up, dgate, dup, h_rows, columns, dh.stride(0), gate.stride(0), up.stride(0), dgate.stride(0),
            dup.stride(0), h_rows.stride(0), KIND=kind, PRODUCT=h is not None, **block,
        )  # fmt: skip
    return dgate, dup, h


class _Glu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor, kind: str) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.kind = kind
        return fused_forward(as_rows(gate), as_rows(up), kind).view(gate.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dh: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        dgate, dup, _ = fused_backward(as_rows(dh), as_rows(gate), as_rows(up), ctx.kind)
        return dgate.view(gate.shape), dup.view(up.shape), None


def fused(
    gate: Tensor,  # (..., I)
    up: Tensor,  # (..., I), same shape and dtype
    kind: str = SILU,
) -> Tensor:  # (..., I)
    """`compose` in one kernel each way; keeps gate and up for the backward pass, nothing else.

    Raises:
        ValueError: gate and up differ in shape or dtype.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(f"gate is {gate.dtype} {tuple(gate.shape)}, up is {up.dtype} {tuple(up.shape)}")
    return _Glu.apply(gate, up, kind)


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on rows of `width` elements of `dtype` on such a device."""
    if not 1 <= width < MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH - 1} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    kind: str = SILU,
    layout: str = "contiguous",
    scale: float = 1.0,
    through_autograd: bool = False,
    product: bool = False,
    packed: bool = False,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. `product` asks the backward for h; `packed` reads and writes over halves of one tensor."""
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    gate, up = draws.normal(rows, width, scale=scale), draws.normal(rows, width)
    dh = draws.upstream(rows, width)

    def run(implementation: Implementation) -> dict[str, Tensor]:
        if through_autograd:
            leaves = gate.detach().requires_grad_(), up.detach().requires_grad_()
            result = implementation(*leaves, kind)
            dgate, dup = torch.autograd.grad(result, leaves, dh)
            return {"h": result.detach(), "dgate": dgate, "dup": dup}
        if packed:
            both = torch.cat((gate, up, up[:, :1]), dim=1)
            halves = both[:, :width], both[:, width : 2 * width]
            buffers = {"dgate": halves[0], "dup": halves[1], "h": dh.clone()}
            result = implementation.forward(*halves, kind, out=torch.empty_like(both)[:, :width])
            dgate, dup, again = implementation.backward(buffers["h"], *halves, kind, **buffers)
        else:
            result = implementation.forward(gate, up, kind)
            dgate, dup, again = implementation.backward(
                dh, gate, up, kind, h=torch.empty_like(result) if product else None
            )
        return {"h": result, "dgate": dgate, "dup": dup} | ({} if again is None else {"h again": again})

    return run


GLU = Op(
    name="glu",
    reference=Implementation(forward=reference_forward, backward=reference_backward, apply=compose),
    triton=Implementation(forward=fused_forward, backward=fused_backward, apply=fused),
    supports=supports,
    sample=sample,
)
