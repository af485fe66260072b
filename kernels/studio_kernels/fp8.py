"""Rows in 8-bit floating point (e4m3) with one scale a row, and the product of two such matrices.

    s_t = max_k |x_tk| / 448        x8_tk = round(x_tk / s_t)        y_tn = s_t s'_n sum_k x8_tk w8_nk

T rows, K columns; x (T, K); x8 (T, K) float8_e4m3fn, whose largest number is 448; s (T, 1) float32. A weight (N, K) is
quantised by the same function: one scale an output. Three bits of mantissa make an error of 2.6 % (root mean square)
of Gaussian values: not exact, and never used unasked. `join` adds what stays in 16 bits, y + U B^T of an adapter, to
such a product. Source: Micikevicius et al. 2022, arXiv:2209.05433.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, interpreted, tl, triton
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LARGEST = 448.0
SMALLEST_PEAK = 1e-12
"""Rows of zeros, and what is next to it, are scaled as if this were their largest value."""
MAX_WIDTH = 32768
"""Widest row: one program holds a whole row, 64 registers a thread with 16 warps."""
LOWEST_CAPABILITY = (8, 9)
"""Ada: the first with 8-bit floating-point matrix products."""
ALIGNMENT = 16
"""Rows and columns of a weight that torch._scaled_mm takes are multiples of this."""
JOINED = {"ROWS": 128, "COLUMNS": 128, "RANKS": 64, "num_warps": 8, "num_stages": 2}
"""One program's tile of `join`, and how much of the rank it takes at a time: at most 64 KB of shared memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp8Implementation(Implementation):
    """`forward` quantises rows."""

    join: Callable


def reference_forward(x: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`x` (T, K) of any row stride as x8 (T, K) float8_e4m3fn and its scales (T, 1) float32; see `triton_forward`."""
    # An infinite norm is the largest magnitude, in one pass and without a temporary.
    peak = torch.linalg.vector_norm(x, float("inf"), dim=-1, keepdim=True, dtype=_wide(x)).float()
    scale = peak.clamp_min(SMALLEST_PEAK) * (1 / LARGEST)
    if out is None:
        out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    return out.copy_(x.float() * scale.reciprocal()), scale


def reference_join(
    y: Tensor,  # (T, N)
    u: Tensor,  # (T, R)
    b: Tensor,  # (N, R), any strides
    *,
    add: Tensor | None = None,  # (T, N)
    out: Tensor | None = None,  # (T, N)
) -> Tensor:  # (T, N)
    """y + u b^T (+ `add`), written to `out`, or over y without one."""
    out = y.addmm_(u, b.T) if out is None else torch.addmm(y, u, b.T, out=out)
    return out if add is None else out.add_(add)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


@triton.jit()
def _encode(x):
    """The e4m3 byte of float32 values of at most 448, rounded to nearest, ties to even, by integer arithmetic.

    For GPUs without an instruction for it, and for Triton's interpreter, whose own cast forgets to carry.
    """
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Twenty bits of mantissa go; the exponent's bias falls from 127 to 7.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 steps are 2^-9, as of float32 from 2^14 to 2^15: the addition rounds.
    magnitude = size.to(tl.float32, bitcast=True)
    subnormal = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0.015625, subnormal, normal)
    return tl.minimum(code, 127) | ((bits >> 24) & 128)  # 127 is NaN


@triton.jit(do_not_specialize=["rows"])
def _rows_kernel(
    x_pointer, out_pointer, scale_pointer, rows, columns, x_stride, out_stride,
    LARGEST: tl.constexpr, SMALLEST_PEAK: tl.constexpr, NATIVE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    row_mask = row < rows
    mask = row_mask[:, None] & (column < columns)[None, :]
    x = tl.load(x_pointer + row[:, None] * x_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), SMALLEST_PEAK) * (1.0 / LARGEST)
    scaled = x * tl.div_rn(1.0, scale)[:, None]
    if NATIVE:
        code = scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        code = _encode(scaled).to(tl.uint8)
    tl.store(out_pointer + row[:, None] * out_stride + column[None, :], code, mask=mask)
    tl.store(scale_pointer + row, scale, mask=row_mask)


@triton.jit(do_not_specialize=["rows"])
def _join_kernel(
    y_pointer, u_pointer, b_pointer, add_pointer, out_pointer, rows, columns, ranks, y_stride, u_stride, b_stride,
    b_rank_stride, add_stride, out_stride,
    ADD: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    # Asked for first and used last: the products hide how long it takes to come.
    y = tl.load(y_pointer + row[:, None] * y_stride + column[None, :], mask=mask, other=0.0)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, ranks, RANKS):
        rank = first + tl.arange(0, RANKS)
        rank_mask = rank < ranks
        u_at = u_pointer + row[:, None] * u_stride + rank[None, :]
        u = tl.load(u_at, mask=row_mask[:, None] & rank_mask[None, :], other=0.0)
        b_at = (
            b_pointer + column[None, :].to(tl.int64) * b_stride + rank[:, None].to(tl.int64) * b_rank_stride
        )
        b = tl.load(b_at, mask=rank_mask[:, None] & column_mask[None, :], other=0.0)
        if WIDE:
            u, b = u.to(tl.float32), b.to(tl.float32)
        total = tl.dot(u, b, total)
    total += y.to(tl.float32)
    if ADD:
        add_at = add_pointer + row[:, None] * add_stride + column[None, :]
        total += tl.load(add_at, mask=mask, other=0.0).to(tl.float32)
    out_at = out_pointer + row[:, None] * out_stride + column[None, :]
    tl.store(out_at, total.to(out_pointer.dtype.element_ty), mask=mask)


def block_shape(columns: int) -> dict[str, int]:
    """Rows and columns of one program's block (powers of two) and its warps, for rows of `columns` elements."""
    columns_block = max(16, 1 << (columns - 1).bit_length())
    rows_block = max(1, min(32, 2048 // columns_block))
    return {"ROWS": rows_block, "COLUMNS": columns_block, "num_warps": max(4, min(16, columns_block // 512))}


def _native(device: torch.device) -> bool:
    """Whether the device rounds to e4m3 by an instruction: half the kernel's instructions are then gone.

    From Hopper on: for Ada, Triton 3.6 and 3.7 cut to float16 first, which rounds some values just above a tie down.
    """
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (9, 0)


def triton_forward(x: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`reference_forward` in one pass, with the same bits; the reference itself for rows that no program holds.

    `out` (T, K) float8_e4m3fn may have any row stride. A row with an infinite value or NaN comes out as NaN where that
    value stood.
    """
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, columns = x.shape
    if columns > MAX_WIDTH:
        return reference_forward(x, out)
    if out is None:
        out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = block_shape(columns)
    with torch.cuda.device_of(x):
        _rows_kernel[(-(-rows // block["ROWS"]),)](
            x, out.view(torch.uint8), scale, rows, columns, x.stride(0), out.stride(0),
            LARGEST=LARGEST, SMALLEST_PEAK=SMALLEST_PEAK, NATIVE=_native(x.device),
            enable_fp_fusion=False, **block,
        )  # fmt: skip
    return out, scale


def triton_join(
    y: Tensor,  # (T, N)
    u: Tensor,  # (T, R)
    b: Tensor,  # (N, R), any strides
    *,
    add: Tensor | None = None,  # (T, N)
    out: Tensor | None = None,  # (T, N)
) -> Tensor:  # (T, N)
    """`reference_join` in one pass, rounded once; 16-bit numbers, any row strides."""
    if y.dtype.itemsize > 2:
        return reference_join(y, u, b, add=add, out=out)
    out, (rows, columns) = y if out is None else out, y.shape
    if not rows:
        return out
    grid = (-(-columns // JOINED["COLUMNS"]), -(-rows // JOINED["ROWS"]))
    with torch.cuda.device_of(y):
        _join_kernel[grid](
            y, u, b, y if add is None else add, out, rows, columns, u.shape[1], y.stride(0), u.stride(0), b.stride(0),
            b.stride(1), 0 if add is None else add.stride(0), out.stride(0),
            ADD=add is not None, WIDE=interpreted(), **JOINED,
        )  # fmt: skip
    return out


def multiply(
    x8: Tensor,  # (T, K) float8_e4m3fn
    x_scale: Tensor,  # (T, 1) float32
    w8: Tensor,  # (N, K) float8_e4m3fn
    w_scale: Tensor,  # (N, 1) float32
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    *,
    fast: bool = True,
) -> Tensor:  # (T, N)
    """(x8 x_scale) (w8 w_scale)^T on the 8-bit units of a GPU, see `supports_multiply`; elsewhere `reference_multiply`.

    `fast` lets Hopper add up with fewer bits than float32 has, at about its full rate. `out` is contiguous.
    """
    if x8.device.type != "cuda":
        return reference_multiply(x8, x_scale, w8, w_scale, out_dtype, out)
    options = {"scale_a": x_scale, "scale_b": w_scale.t(), "out_dtype": out_dtype, "use_fast_accum": fast}
    if out is not None:
        options["out"] = out
    return torch._scaled_mm(x8, w8.t(), **options)


def reference_multiply(
    x8: Tensor,
    x_scale: Tensor,
    w8: Tensor,
    w_scale: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
) -> Tensor:
    """`multiply` of what the bytes stand for, rounded to `out_dtype`: on every device."""
    x, w = ((each.to(scale.dtype) * scale).to(out_dtype) for each, scale in ((x8, x_scale), (w8, w_scale)))
    return torch.mm(x, w.t(), out=out)


def supports_multiply(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, inputs: int, outputs: int
) -> Support:
    """Whether `multiply` takes a weight of `outputs` x `inputs` on such a device and returns `dtype`."""
    if device_type != "cuda" or torch.version.hip or capability is None or capability < LOWEST_CAPABILITY:
        return Support(
            False, f"8-bit products need an NVIDIA GPU of compute capability 8.9 or more, not {capability}."
        )
    if dtype != torch.bfloat16:
        return Support(False, f"8-bit products with a scale a row come out in bfloat16, not in {dtype}.")
    if inputs % ALIGNMENT or outputs % ALIGNMENT:
        return Support(False, f"8-bit products need multiples of {ALIGNMENT}, not {outputs} x {inputs}.")
    return Support(True, "The device has 8-bit floating-point products.")


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernel may quantise rows of `width` elements of `dtype` on such a device."""
    if not 1 <= width <= MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES, dots=True)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    layout: str = "contiguous",
    scale: float = 1.0,
    join: str = "",
    rank: int = 64,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. The bytes are whole numbers, so that they must be the twin's own.

    `join`: also add a product of `rank` to `width` columns: "place" over y, "add" with a third summand into wider rows,
    "back" with b transposed. In 16 bits: float32 has no kernel.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    x = draws.normal(rows, width, scale=scale)
    flat = Draws(dtype=dtype, device=device, wide=wide)
    y, add = flat.normal(rows, width), flat.normal(rows, width)
    u = flat.normal(rows, 2 * rank)[:, rank:]
    b = flat.normal(rank, width).T if join == "back" else flat.normal(width, rank)

    def run(implementation: Implementation) -> dict[str, Tensor]:
        x8, scales = implementation.forward(x)
        found = {"bytes": x8.view(torch.uint8), "scale": scales}
        if not join:
            return found
        place = y.clone() if join == "place" else y
        out = None if join == "place" else y.new_empty(rows, width + rank)[:, :width]
        joined = implementation.join(place, u, b, add=add if join == "add" else None, out=out)
        return found | {"joined": joined}

    return run


FP8 = Op(
    name="fp8",
    reference=Fp8Implementation(forward=reference_forward, join=reference_join),
    triton=Fp8Implementation(forward=triton_forward, join=triton_join),
    supports=supports,
    sample=sample,
    needs_dots=True,
)
