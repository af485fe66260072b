"""Product of 1 to 64 rows by the 16-bit weights of linears that read the same rows, with their adapters.

    U = X A^T        Y_p = X W_p^T + U_p B_p^T + bias_p + add_p

for each part p: W_p (out_p, in), of the rows that all parts have in common X (T, in); U_p is the columns of U that are
p's, rounded to X's dtype. What a step of generation takes is the time in which W is read: every part's tiles are one
launch, and U is one before it, cut into parts of the columns whose sums the second launch adds up. So an adapter costs
one launch a group, not two a linear. Source: Hu et al. 2021, arXiv:2106.09685.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, interpreted
from studio_kernels.few_rows_kernels import _down_kernel, _product_kernel
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16)
MOST_ROWS = 64
MOST_PARTS = 3
"""Query, key and value."""
DOWN_RANKS = 64
"""Rows of A in one program."""


@dataclass(frozen=True, slots=True)
class RowsTile:
    """How a product is cut."""

    outputs: int
    keys: int
    """Columns of one step."""
    num_warps: int
    num_stages: int


def choose_tile(rows: int, outputs: int, inputs: int, *, nvidia: bool, roomy: bool) -> RowsTile | None:
    """The tile for so many rows by weights of this shape, None where PyTorch's own products are as fast.

    The fastest of 31 on one H200 (torch 2.11, Triton 3.6, 2026-11-27), or what is next to it and fits: `roomy` cards
    have 160 KB of shared memory and more for a program, others' compilers (not `nvidia`) put more there a stage.
    Microseconds for groups of an 8B model with adapters, 1, 16 and 64 rows, and PyTorch's: q, k and v 22, 23, 27 (53,
    65, 65); o 16, 17, 22 (26, 27, 25); gate and up 63, 65, 75 (81, 88, 99); down 41, 42, PyTorch's (46, 48, 51).
    """
    if not nvidia:
        return RowsTile(outputs=32, keys=128, num_warps=4, num_stages=1)
    if rows > 16:
        if inputs > 8192 and outputs <= 8192:
            return None
        return RowsTile(outputs=64, keys=128, num_warps=4, num_stages=4 if roomy and outputs <= 8192 else 3)
    if outputs > 8192:
        return RowsTile(outputs=64, keys=128, num_warps=4, num_stages=2)
    return RowsTile(outputs=16, keys=512, num_warps=2, num_stages=4 if roomy else 3)


ROOMY_BYTES = 160 * 1024


@cache
def _is_roomy(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin >= ROOMY_BYTES


def takes(x: Tensor, weights: Sequence[Tensor]) -> Support:
    """Whether the kernels can multiply these rows by these weights; the twin takes all."""
    if not 1 <= x.shape[0] <= MOST_ROWS:
        return Support(False, f"The kernels take 1 to {MOST_ROWS} rows, not {x.shape[0]}.")
    if len(weights) > MOST_PARTS:
        return Support(False, f"The kernels take up to {MOST_PARTS} linears, not {len(weights)}.")
    if x.dtype not in DTYPES or any(weight.dtype != x.dtype for weight in weights):
        return Support(False, f"The kernels are not written for {x.dtype} by {weights[0].dtype}.")
    strides = {weight.stride() for weight in weights}
    if len(strides) > 1 or strides.pop()[1] != 1 or x.stride(1) != 1:
        return Support(False, "The kernels take weights with one stride, whose columns are neighbours.")
    return Support(True, "The kernels can multiply these rows by these weights.")


def reference_forward(
    x: Tensor,  # (T, in)
    weights: Sequence[Tensor],  # (out_p, in), of one row stride
    *,
    a: Tensor | None = None,  # (parts r, in): r rows a part, zeros where it has fewer
    b: Tensor | None = None,  # (out, r), of all parts below each other, scaled
    bias: Tensor | None = None,  # (out,)
    add: Tensor | None = None,  # (T, out), any row stride
    out: Tensor | None = None,  # (T, out), any row stride
) -> Tensor:  # (T, out)
    """Y of all parts side by side, each product rounded once, and the adapters added to it."""
    outputs = sum(weight.shape[0] for weight in weights)
    if out is None:
        out = torch.empty(x.shape[0], outputs, dtype=x.dtype, device=x.device)
    u, column = None if a is None else torch.mm(x, a.T), 0
    for number, weight in enumerate(weights):
        part = slice(column, column + weight.shape[0])
        place = out[:, part]
        start = add[:, part] if add is not None else None if bias is None else bias[part]
        y = torch.mm(x, weight.T) if start is None else torch.addmm(start, x, weight.T)
        if add is not None and bias is not None:
            y += bias[part]
        if u is not None:
            rank = b.shape[1]
            y.addmm_(u[:, number * rank : (number + 1) * rank], b[part].T)
        place.copy_(y)
        column = part.stop
    return out


def fused_forward(
    x: Tensor,
    weights: Sequence[Tensor],
    *,
    a: Tensor | None = None,
    b: Tensor | None = None,
    bias: Tensor | None = None,
    add: Tensor | None = None,
    out: Tensor | None = None,
    tile: RowsTile | None = None,
) -> Tensor:
    """`reference_forward` in one launch, two with adapters; itself where
    `takes` says no, or it is as fast. Sums are float32."""
    if not takes(x, weights).ok:
        return reference_forward(x, weights, a=a, b=b, bias=bias, add=add, out=out)
    (rows, columns), sizes = x.shape, [weight.shape[0] for weight in weights]
    outputs = sum(sizes)
    nvidia = not torch.version.hip
    tile = tile or choose_tile(rows, outputs, columns, nvidia=nvidia, roomy=_is_roomy(x.device))
    if tile is None:
        return reference_forward(x, weights, a=a, b=b, bias=bias, add=add, out=out)
    if out is None:
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    padded = max(16, 1 << (rows - 1).bit_length())
    rank, split, u = 0, 1, x
    with torch.cuda.device_of(x):
        if a is not None:
            rank = b.shape[1]
            split = 16 if rows <= 16 else 8
            step = -(-columns // split)
            step = max(64, 1 << (step - 1).bit_length())
            split = -(-columns // step)
            u = torch.empty(split, rows, a.shape[0], dtype=torch.float32, device=x.device)
            _down_kernel[(split, -(-a.shape[0] // DOWN_RANKS))](
                x, a, u, rows, columns, x.stride(0), a.shape[0], STEP=step, KEYS=min(128, step), ROWS=padded,
                RANKS=DOWN_RANKS, WIDE=interpreted(), num_warps=4, num_stages=2,
            )  # fmt: skip
        tiles = [-(-size // tile.outputs) for size in sizes]
        first, second, third = ([*weights] + [weights[0]] * MOST_PARTS)[:MOST_PARTS]
        counts, ends = ([*one, *[0] * MOST_PARTS][:MOST_PARTS] for one in (tiles, sizes))
        _product_kernel[(sum(tiles),)](
            x, first, second, third, u, b if rank else x, bias if bias is not None else x,
            add if add is not None else x, out, rows, columns, x.stride(0), weights[0].stride(0),
            0 if add is None else add.stride(0), out.stride(0), counts[0], counts[0] + counts[1], *ends, SPLIT=split,
            SPLITS=1 << (split - 1).bit_length(), RANK=rank, RANKS=max(16, 1 << (max(1, rank) - 1).bit_length()),
            PARTS=len(weights), BIASED=bias is not None, ADDED=add is not None,
            EVEN=columns % tile.keys == 0, WIDE=interpreted(), OUTPUTS=tile.outputs, KEYS=tile.keys, ROWS=padded,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
    return out


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on rows of `dtype` on such a device (see `takes`, too)."""
    return gpu_support(device_type, capability, dtype, DTYPES, dots=True)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    few: int = 3,
    rank: int = 8,
    parts: int = 3,
    bias: bool = True,
    added: bool = True,
    spare: int = 0,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """`few` rows by `parts` weights of `width` inputs and `rows` outputs, half as many the second; see `Op.sample`.

    `spare`: columns between the rows of a weight, as where adapters lie beside it in training.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide)
    x = draws.normal(few, width)
    sizes = [rows, max(1, rows // 2), rows][:parts]
    weights = tuple(draws.normal(size, width + spare)[:, :width] for size in sizes)
    total = sum(sizes)
    more = {}
    if rank:
        more["a"], more["b"] = draws.normal(parts * rank, width, scale=width**-0.5), draws.normal(total, rank)
    if bias:
        more["bias"] = draws.normal(total, scale=4.0)
    if added:
        more["add"] = draws.normal(few, total + 64, scale=4.0)[:, :total]

    def run(implementation: Implementation) -> dict[str, Tensor]:
        place = torch.empty(few, total + 16, dtype=x.dtype, device=device)[:, :total]
        plain = implementation.forward(x, weights)
        return {"y": implementation.forward(x, weights, out=place, **more), "plain": plain}

    return run


FEW_ROWS = Op(
    name="few_rows",
    reference=Implementation(forward=reference_forward),
    triton=Implementation(forward=fused_forward),
    supports=supports,
    sample=sample,
    needs_dots=True,
)
