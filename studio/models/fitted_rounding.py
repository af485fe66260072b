"""Rounds a matrix to the 16 numbers of NF4 so that its products stay right, not its single weights.

    least  E |x (W - Q)^T|^2 = tr((W - Q) M (W - Q)^T)        M = E[x^T x], of the rows that the matrix meets
    column by column, what is used most first:    q_j = nearest(w_j)        e = (w_j - q_j) / U_jj
    what is not rounded yet takes the error over:    W_(j+1...) -= e U_(j, j+1...)        M^-1 = U^T U

Scales stay those of the nearest rounding, so the result is read, multiplied and opened as any NF4 weight. Source:
Frantar et al. 2022, arXiv:2210.17323 (GPTQ), there for whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from studio_kernels.nf4 import Nf4, open_scales
from torch import Tensor

PART_COLUMNS = 4096
"""Columns whose errors are set off against each other: M of more would take 0.8 GB for a row of 14,336."""
BLOCK_COLUMNS = 128
"""Columns that are rounded before what lies right of them hears of it, by one product."""
DAMPING = (0.01, 0.1, 1.0)
"""Share of M's mean diagonal that is added to it, more where M cannot be inverted so."""


class Moments:
    """M of the rows that a matrix of so many columns meets, as parts of at most PART_COLUMNS columns."""

    def __init__(self, columns: int, device: torch.device) -> None:
        starts = range(0, columns, PART_COLUMNS)
        self.slices = [slice(start, min(start + PART_COLUMNS, columns)) for start in starts]
        self.parts = [
            torch.zeros(one.stop - one.start, one.stop - one.start, device=device) for one in self.slices
        ]

    def add(self, rows: Tensor) -> None:
        """Add rows (T, columns)."""
        for columns, part in zip(self.slices, self.parts, strict=True):
            x = rows[:, columns].float()
            part.addmm_(x.T, x)


def spread_scales(weight: Nf4) -> Tensor:
    """Return (R, C) fp32, the scale of each element: its block's."""
    return open_scales(weight).repeat_interleave(weight.block)[: prod(weight.shape)].reshape(weight.shape)


def round_fitted(weight: Tensor, scales: Tensor, code: Tensor, moments: Moments) -> Tensor:
    """Return (R, C) uint8, the places in `code` (16,) of what W (R, C) is rounded to.

    weight, scales: (R, C) fp32. Columns that meet nothing but zeros are rounded to the nearest.
    """
    middles = (code[1:] + code[:-1]) / 2
    found = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    for columns, part in zip(moments.slices, moments.parts, strict=True):
        w, s = weight[:, columns], scales[:, columns]
        order = part.diagonal().argsort(descending=True)
        pulls = _invert(part[order][:, order])
        if pulls is None:
            found[:, columns] = _find_nearest(w, s, middles)
        else:
            found[:, columns.start + order] = _round(w[:, order], s[:, order], code, middles, pulls)
    return found


def pack(places: Tensor) -> Tensor:
    """Return (ceil(n / 2),) uint8 of n places: two a byte, the first one in its high half, as bitsandbytes packs."""
    flat = places.reshape(-1)
    if len(flat) % 2:
        flat = torch.cat((flat, flat.new_zeros(1)))
    return flat[0::2] << 4 | flat[1::2]


def _invert(moments: Tensor) -> Tensor | None:
    """Return U (C, C), upper, with M^-1 = U^T U; None where M is zero or is not to be inverted."""
    mean = float(moments.diagonal().mean())
    if not mean > 0:
        return None
    for share in DAMPING:
        damped = moments.clone()
        damped.diagonal().add_(share * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if failed:
            continue
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed and bool(upper.isfinite().all()):
            return upper
    return None


def _find_nearest(weight: Tensor, scales: Tensor, middles: Tensor) -> Tensor:
    # A block of zeros has the scale 0, and any place will do.
    return torch.bucketize(weight / scales.clamp(min=1e-30), middles).to(torch.uint8)


def _round(weight: Tensor, scales: Tensor, code: Tensor, middles: Tensor, pulls: Tensor) -> Tensor:
    left = weight.clone()
    found = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    for start in range(0, weight.shape[1], BLOCK_COLUMNS):
        block = slice(start, min(start + BLOCK_COLUMNS, weight.shape[1]))
        errors = []
        for j in range(block.start, block.stop):
            found[:, j] = _find_nearest(left[:, j], scales[:, j], middles)
            rounded = code[found[:, j].long()] * scales[:, j]
            error = (left[:, j] - rounded) / pulls[j, j]
            left[:, j + 1 : block.stop].addr_(error, pulls[j, j + 1 : block.stop], alpha=-1)
            errors.append(error)
        left[:, block.stop :].addmm_(_stack(errors), pulls[block, block.stop :], alpha=-1)
    return found


def _stack(columns: Sequence[Tensor]) -> Tensor:
    return torch.stack(tuple(columns), dim=1)
