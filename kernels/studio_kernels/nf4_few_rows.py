"""Product of 1 to 64 rows by a 4-bit weight, with the low-rank tail: Y = X W^T + U (s B)^T, W opened in registers.

What a step of generation reads of a model are its weights: packed they are 0.52 bytes an element, opened first they are
written and read once more in 16 bits, 4.5 bytes in all. The numbers of the code are rounded to X's dtype, the scales of
the blocks stay in float32 and multiply sums; opening first (`nf4`) rounds their product instead: as exact, not equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels import nf4
from studio_kernels._triton import gpu_support, interpreted
from studio_kernels.few_rows import MOST_ROWS
from studio_kernels.nf4 import BLOCK, Nf4
from studio_kernels.nf4_few_rows_kernels import _product_kernel, _sum_kernel
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16)
ELEMENTS = 512


@dataclass(frozen=True, slots=True)
class OutputTile:
    """How a product is cut."""

    outputs: int
    parts: int
    """Of the columns; more than one: their sums are written in float32 and added by a second kernel."""
    num_warps: int
    num_stages: int


def choose_tile(rows: int, outputs: int, inputs: int, nvidia: bool) -> OutputTile:
    """The tile for so many rows by a weight of this shape: the fastest of 28 on one H200 (torch 2.11, 2026-11-26).

    Of the four shapes of an 8B layer 16 rows take 33 to 46 us and 64 rows 34 to 65; 1 row takes what it takes opened
    beforehand, 31 us for 14,336 x 4,096. Others' compilers put more into shared memory for each stage than NVIDIA's.
    """
    few = rows <= 16
    parts = max(1, min(8, inputs // (512 if few else 1024)))
    return OutputTile(outputs=64, parts=parts, num_warps=2, num_stages=1 if few or not nvidia else 2)


def takes(x: Tensor, weight: Nf4) -> Support:
    """Whether the kernel can multiply these rows by this weight; the twin takes every one."""
    rows, columns = x.shape
    if not 1 <= rows <= MOST_ROWS:
        return Support(False, f"The kernel takes 1 to {MOST_ROWS} rows, not {rows}.")
    if weight.block != BLOCK or columns % BLOCK:
        return Support(
            False, f"The kernel takes rows of whole blocks of {BLOCK}, not {columns} in {weight.block}."
        )
    if x.dtype not in DTYPES:
        return Support(False, f"The kernel is not written for {x.dtype}.")
    return Support(True, "The kernel can multiply these rows by this weight.")


def reference_forward(
    x: Tensor,  # (rows, in), any row stride
    weight: Nf4,  # (out, in)
    *,
    tail: tuple[Tensor, Tensor] | None = None,  # U (rows, r) and s B (out, r), any row strides
) -> Tensor:  # (rows, out)
    """The weight opened whole, then PyTorch's product."""
    opened = nf4.reference_forward(weight, torch.empty(weight.shape, dtype=x.dtype, device=x.device))
    y = x @ opened.T
    return y if tail is None else y.addmm_(tail[0], tail[1].T)


def fused_forward(
    x: Tensor, weight: Nf4, *, tail: tuple[Tensor, Tensor] | None = None, tile: OutputTile | None = None
) -> Tensor:
    """`reference_forward` in one kernel, or two where the columns are cut into parts; itself where `takes` says no."""
    if not takes(x, weight).ok:
        return reference_forward(x, weight, tail=tail)
    (rows, columns), outputs = x.shape, weight.shape[0]
    nvidia = x.is_cuda and not torch.version.hip
    tile = tile or choose_tile(rows, outputs, columns, nvidia)
    nested = weight.nested_absmax is not None
    blocks = next(count for count in (4, 2, 1) if columns // BLOCK % count == 0)
    absmax = weight.absmax
    if nested and blocks > 1:  # of so many blocks in one word
        whole = absmax.numel() % blocks == 0 and absmax.storage_offset() % blocks == 0
        blocks = blocks if whole else 1
        absmax = absmax.view({4: torch.int32, 2: torch.int16, 1: torch.uint8}[blocks])
    if x.stride(1) != 1 or x.stride(0) % 2 or x.storage_offset() % 2:
        x = x.contiguous()
    steps = columns // (BLOCK * blocks)
    parts = min(tile.parts, steps)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    to = torch.empty(parts, rows, outputs, dtype=torch.float32, device=x.device) if parts > 1 else out
    code = weight.code
    outer = (weight.nested_absmax, weight.nested_code, weight.offset) if nested else (code, code, code)
    u, b = tail or (x, x)
    rank = u.shape[1] if tail else 0
    pairs = x.view(torch.int32)
    with torch.cuda.device_of(x):
        _product_kernel[(-(-outputs // tile.outputs), parts)](
            pairs, weight.packed, absmax, weight.words(x.dtype), code, *outer, u, b, to, rows, outputs, steps,
            -(-steps // parts), pairs.stride(0), u.stride(0), b.stride(0), NESTED=nested,
            NESTED_BITS=weight.nested_block.bit_length() - 1, TAIL=rank,
            TAIL_BLOCK=max(16, 1 << (rank - 1).bit_length()) if rank else 16, WHOLE=parts == 1,
            PTX=nvidia, WIDE=interpreted(), BLOCKS=blocks,
            ROWS=max(16, 1 << (rows - 1).bit_length()), OUTPUTS=tile.outputs,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        if parts > 1:
            _sum_kernel[(-(-out.numel() // ELEMENTS),)](
                to, out, out.numel(), PARTS=parts, ELEMENTS=ELEMENTS, num_warps=4
            )
    return out


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernel may multiply rows of `width` elements of `dtype` on such a device (see `takes`, too)."""
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
    nested: bool = True,
    layout: str = "sliced",
) -> Callable[[Implementation], dict[str, Tensor]]:
    """`few` rows by a weight of `rows` outputs and `width` inputs, in whole blocks; `rank` 0: without a tail."""
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    width = max(BLOCK, width // BLOCK * BLOCK)
    x = draws.normal(few, width)
    weight = Nf4.drawn(draws, (rows, width), dtype, nested=nested)
    tail = (draws.normal(few, rank), draws.normal(rows, rank)) if rank else None

    def run(implementation: Implementation) -> dict[str, Tensor]:
        return {"y": implementation.forward(x, weight, tail=tail)}

    return run


NF4_FEW_ROWS = Op(
    name="nf4_few_rows",
    reference=Implementation(forward=reference_forward),
    triton=Implementation(forward=fused_forward),
    supports=supports,
    sample=sample,
    needs_dots=True,
)
