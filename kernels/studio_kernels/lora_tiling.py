"""How the skinny products in `lora` are cut into tiles, and how many programs share a sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ONE_READ_RANK = 32
"""Highest rank of one linear at which G and dB come from one reading of dY: the partial sums of G take 2 rank / 256 of
dY's bytes each way, and from 64 columns on that costs more than reading dY again."""
ALIGNED = 16
ELEMENTS = 256
"""Sums of one program of the summing kernels."""
SUMMANDS = 8
"""Read at a time: as many loads are under way together."""
PROGRAMS_PER_PROCESSOR = 2
PROCESSORS_ELSEWHERE = 4
"""Assumed in Triton's interpreter: enough to split."""
LARGE_SHARED = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Capabilities with at least 163 KB of shared memory a block; the others have 99 KB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One tile of wide rows against a narrow matrix."""

    rows: int
    columns: int
    ranks: int
    num_warps: int
    num_stages: int

    def options(self) -> dict[str, int]:
        """As a kernel takes them."""
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "RANKS": self.ranks,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


def choose_shape(rank: int, y: Tensor) -> Shape:
    """For dB and G of `rank` columns, from wide rows `y`."""
    stages = 3 if _has_large_shared(y.device) else 2
    return Shape(rows=64, columns=_halved(256, y), ranks=_pad(rank), num_warps=8, num_stages=stages)


def _pad(rank: int) -> int:
    """Columns of the narrow matrix in one tile: a power of two, 16 at least (a matrix instruction's), 32 at most."""
    return min(ONE_READ_RANK, max(16, 1 << (rank - 1).bit_length()))


def _halved(columns: int, x: Tensor) -> int:
    """As many bytes a tile in float32 as in 16 bits."""
    return columns if x.dtype.itemsize <= 2 else columns // 2


def _has_large_shared(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) in LARGE_SHARED


def processors_of(device: torch.device) -> int:
    """Multiprocessors of `device`."""
    if device.type != "cuda":
        return PROCESSORS_ELSEWHERE
    return torch.cuda.get_device_properties(device).multi_processor_count


def split(blocks: int, others: int, device: torch.device) -> tuple[int, int]:
    """(parts, blocks of each) of a sum over `blocks` blocks, of which `others` run side by side."""
    wanted = -(-PROGRAMS_PER_PROCESSOR * processors_of(device) // others)
    blocks_per_part = -(-blocks // max(1, min(wanted, blocks)))
    return -(-blocks // blocks_per_part), blocks_per_part


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Diagonal:
    """The blocks of a block-diagonal B, and where their gradients go; made once, used in every step."""

    blocks: tuple[tuple[int, int, int, int], ...]
    """First and last row, first and last column of each block, the last ones not included."""
    gradients: tuple[Tensor, ...]
    """(rows, columns) float32 of each block, unit column stride."""
    scales: tuple[float, ...]
    rank: int
    """Columns of the widest block."""
    tiles: Tensor
    """(E, 6) int64: each tile's first and last row, first column, columns, gradient (in elements from gradients[0]) and
    its row stride."""
    tile_scales: Tensor
    """(E,) float32."""
    groups: Tensor
    """(P, 4) int64: first and last tile, first column, columns of parts of G; parts without tiles are zero."""
    row_step: int
    column_step: int
    """What all first and last rows, and all first columns, are multiples of; 16 at most."""

    @classmethod
    def of(
        cls,
        blocks: Sequence[tuple[int, int, int, int]],
        gradients: Sequence[Tensor],
        scales: Sequence[float],
        b: Tensor,
    ) -> Diagonal:
        """For `b` (out, R); blocks ascend and do not overlap."""
        columns, rank = b.shape[1], max(right - left for _, _, left, right in blocks)
        shape = choose_shape(min(rank, ONE_READ_RANK), b)
        tiles: list[tuple[int, ...]] = []
        groups: list[tuple[int, ...]] = []
        tile_scales: list[float] = []
        covered = 0
        for (top, bottom, left, right), gradient, scale in zip(blocks, gradients, scales, strict=True):
            groups += [(0, 0, at, min(left - at, shape.ranks)) for at in range(covered, left, shape.ranks)]
            base = (gradient.data_ptr() - gradients[0].data_ptr()) // gradient.element_size()
            for at in range(left, right, shape.ranks):
                first = len(tiles)
                for row in range(top, bottom, shape.columns):
                    place = base + (row - top) * gradient.stride(0) + at - left
                    count = min(right - at, shape.ranks)
                    tiles.append((row, bottom, at, count, place, gradient.stride(0)))
                    tile_scales.append(scale)
                groups.append((first, len(tiles), at, min(right - at, shape.ranks)))
            covered = right
        groups += [(0, 0, at, min(columns - at, shape.ranks)) for at in range(covered, columns, shape.ranks)]
        return cls(
            blocks=tuple(blocks),
            gradients=tuple(gradients),
            scales=tuple(scales),
            rank=rank,
            tiles=torch.tensor(tiles, dtype=torch.int64).to(b.device),
            tile_scales=torch.tensor(tile_scales, dtype=torch.float32).to(b.device),
            groups=torch.tensor(groups, dtype=torch.int64).to(b.device),
            row_step=math.gcd(ALIGNED, *(row for block in blocks for row in block[:2])),
            column_step=math.gcd(ALIGNED, *(block[2] for block in blocks)),
        )
