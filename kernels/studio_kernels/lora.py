"""The skinny products of LoRA adapters on linears that read the same rows: reading those rows is what they cost.

    U = X A^T            G = dY B            dB = s dY^T U            dA = G^T X

T rows; X (T, in); A (R, in); B (out, R), already scaled by s; dY (T, out); U, G (T, R). R is the sum of the linears'
ranks, rounded up as the caller likes; B is block-diagonal, a block a linear, and only its blocks are multiplied. dA and
dB are added to float32 buffers. Any row strides. Sums are taken in float32 in an order that depends on the shapes and
the card alone, so that runs give equal bits. Source: Hu et al. 2021, arXiv:2106.09685; checked against autograd in
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, interpreted
from studio_kernels.lora_kernels import _add_kernel, _outer_kernel, _sum_rows_kernel
from studio_kernels.lora_tiling import (
    ELEMENTS,
    ONE_READ_RANK,
    SUMMANDS,
    Diagonal,
    Shape,
    choose_shape,
    processors_of,
    split,
)
from studio_kernels.op import NEEDS_DOTS, Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16)
LEAST_ELEMENTS = 190_000
"""Of dY, a multiprocessor: with fewer, three launches and the partial sums cost more than reading dY twice (4,096 rows
on an H200: 6,144 columns gain 16 %, 28,672 gain 30 %, 4,096 lose 25 %)."""
PARTIAL_BYTES = 64 << 20
"""Most memory for partial sums of G: more rows than that allows are taken in portions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraImplementation(Implementation):
    """The four products; `forward` is `project`, `backward` is `gradients`."""

    gradient_b: Callable
    gradient_a: Callable

    @property
    def project(self) -> Callable:
        """U = X A^T."""
        return self.forward

    @property
    def gradients(self) -> Callable:
        """G and dB."""
        return self.backward


def reference_project(
    x: Tensor,  # (T, in)
    a: Tensor,  # (R, in), any strides
    *,
    out: Tensor | None = None,  # (T, R)
) -> Tensor:  # (T, R)
    """U = X A^T, written to `out` where given; also G = dY B, as project(dY, B^T)."""
    return torch.mm(x, a.T) if out is None else torch.mm(x, a.T, out=out)


def reference_gradients(
    dy: Tensor,  # (T, out)
    b: Tensor,  # (out, R), scaled
    u: Tensor,  # (T, R)
    diagonal: Diagonal,
    *,
    g: Tensor,  # (T, R)
) -> Tensor:  # (T, R)
    """Write G and add the blocks of dB to `diagonal.gradients`."""
    torch.mm(dy, b, out=g)
    for (top, bottom, left, right), gradient, scale in zip(
        diagonal.blocks, diagonal.gradients, diagonal.scales, strict=True
    ):
        reference_gradient_b(dy[:, top:bottom], u[:, left:right], scale, out=gradient)
    return g


def reference_gradient_b(
    dy: Tensor,  # (T, out)
    u: Tensor,  # (T, R)
    scale: float = 1.0,
    *,
    out: Tensor,  # (out, R) float32
) -> Tensor:  # (out, R)
    """Add dB = scale dY^T U of one linear to `out`."""
    return out.add_(_wide_product(dy.T, u), alpha=scale)


def reference_gradient_a(
    g: Tensor,  # (T, R)
    x: Tensor,  # (T, in)
    *,
    out: Tensor,  # (R, in) float32
) -> Tensor:  # (R, in)
    """Add dA = G^T X to `out`."""
    return out.add_(_wide_product(g.T, x))


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32 (float64 for float64)."""
    if a.dtype.itemsize > 2:
        return torch.mm(a, b)
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a.float(), b.float())


def fused_gradients(
    dy: Tensor,  # (T, out)
    b: Tensor,  # (out, R), scaled
    u: Tensor,  # (T, R)
    diagonal: Diagonal,
    *,
    g: Tensor,  # (T, R)
) -> Tensor:  # (T, R)
    """`reference_gradients` from one reading of dY, where that pays."""
    few = dy.is_cuda and dy.numel() < LEAST_ELEMENTS * processors_of(dy.device)
    if few or diagonal.rank > ONE_READ_RANK:
        return reference_gradients(dy, b, u, diagonal, g=g)
    shape = choose_shape(diagonal.rank, dy)
    most = PARTIAL_BYTES // (4 * len(diagonal.tiles) * shape.ranks)
    portion = max(1, most // shape.rows) * shape.rows
    for start in range(0, dy.shape[0], portion):
        some = slice(start, start + portion)
        _add_gradients(dy[some], b, u[some], diagonal, g[some], shape)
    return g


def _add_gradients(dy: Tensor, b: Tensor, u: Tensor, diagonal: Diagonal, g: Tensor, shape: Shape) -> None:
    """`fused_gradients` of one portion of the rows."""
    rows, tiles = dy.shape[0], len(diagonal.tiles)
    parts, blocks_per_part = split(-(-rows // shape.rows), tiles, dy.device)
    partial = torch.empty(parts, tiles, shape.columns, shape.ranks, dtype=torch.float32, device=dy.device)
    g_partial = torch.empty(tiles, rows, shape.ranks, dtype=torch.float32, device=dy.device)
    full = all(right - left == shape.ranks for _, _, left, right in diagonal.blocks)
    with torch.cuda.device_of(dy):
        _outer_kernel[(tiles, parts, 1)](
            dy, u, b, diagonal.tiles, partial, g_partial, rows, blocks_per_part, dy.stride(0), u.stride(0), b.stride(0),
            FULL=full, ROW_STEP=diagonal.row_step, COLUMN_STEP=diagonal.column_step, WIDE=interpreted(),
            **shape.options(),
        )  # fmt: skip
        _sum_rows_kernel[(-(-rows * shape.ranks // ELEMENTS), len(diagonal.groups))](
            g_partial, diagonal.groups, g, rows, g.stride(0),
            RANKS=shape.ranks, ELEMENTS=ELEMENTS, SUMMANDS=SUMMANDS, num_warps=4,
        )  # fmt: skip
        _add_kernel[(shape.columns * shape.ranks // ELEMENTS, tiles)](
            partial, diagonal.tiles, diagonal.tile_scales, diagonal.gradients[0], parts,
            COLUMNS=shape.columns, RANKS=shape.ranks, ELEMENTS=ELEMENTS, SUMMANDS=SUMMANDS, num_warps=4,
        )  # fmt: skip


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on rows of `width` elements of `dtype` on such a device."""
    return gpu_support(device_type, capability, dtype, DTYPES, dots=True)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    outputs: tuple[int, ...] = (),
    ranks: tuple[int, ...] = (16, 16),
    tail: int = 64,
    gap: int = 0,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. Everything lies as in the decoder: in tails of wider tensors.

    `outputs` of each linear (as wide as the input, and half of it, when left out); `gap`: outputs without an adapter
    between them.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide)
    outputs = outputs or (width, *((width + 1) // 2 for _ in ranks[1:]))
    out = sum(outputs) + gap * (len(outputs) - 1)
    x, dy = draws.normal(rows, width + tail), draws.normal(rows, out + tail)
    u = draws.normal(rows, tail)
    matrix = draws.normal(out + tail, width + tail, scale=width**-0.5)
    b = matrix[:out, width:]
    mask = torch.zeros_like(b)
    blocks, row, place = [], 0, 0
    for size, rank in zip(outputs, ranks, strict=True):
        blocks.append((row, row + size, place, place + rank))
        mask[row : row + size, place : place + rank] = 1
        row, place = row + size + gap, place + rank
    b.mul_(mask)
    matrix[out + place :] = 0
    sums = torch.float64 if wide else torch.float32
    starts = [
        draws.normal(size, rank, dtype=torch.float32) for size, rank in zip(outputs, ranks, strict=True)
    ]
    start_a = draws.normal(place, width, dtype=torch.float32)

    def run(implementation: Implementation) -> dict[str, Tensor]:
        wide_x, wide_dy = x.clone(), dy.clone()
        gradients = [start.to(sums, copy=True) for start in starts]
        alone, da = starts[0].to(sums, copy=True), start_a.to(sums, copy=True)
        diagonal = Diagonal.of(blocks, gradients, [0.5 + i for i in range(len(blocks))], b)
        projected = implementation.project(wide_x[:, :width], matrix[out:, :width], out=wide_x[:, width:])
        implementation.gradients(wide_dy[:, :out], b, u, diagonal, g=wide_dy[:, out:])
        implementation.gradient_b(dy[:, : outputs[0]], u[:, : ranks[0]], 2.0, out=alone)
        implementation.gradient_a(dy[:, out : out + place], x[:, :width], out=da)
        other = implementation.project(dy[:, :out], b.T)
        named = {f"db {i}": gradient for i, gradient in enumerate(gradients)}
        return {"u": projected, "g": wide_dy[:, out:], "g alone": other, "db alone": alone, "da": da} | named

    return run


LORA = Op(
    name="lora",
    reference=LoraImplementation(
        forward=reference_project,
        backward=reference_gradients,
        gradient_b=reference_gradient_b,
        gradient_a=reference_gradient_a,
    ),
    triton=LoraImplementation(
        # One product alone is bound by reading, and cuBLAS reads faster: 1.05 to 1.6 times on an H200 at ranks of 16.
        forward=reference_project,
        backward=fused_gradients,
        gradient_b=reference_gradient_b,
        gradient_a=reference_gradient_a,
    ),
    supports=supports,
    sample=sample,
    needs_dots=NEEDS_DOTS["lora"],
)
