"""A block of rows of the loss head: what it carries from tile to tile, and both of its steps in PyTorch.

Symbols and formulas: see `linear_cross_entropy`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels.ce_math import LOWEST, weigh


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """What a block of rows carries from tile to tile, and the constants of the loss."""

    targets: Tensor  # (R,)
    reference: Tensor  # (R,) m: log of what E is counted from (in powers of e; of 2 in the kernels)
    total: Tensor  # (R,) S
    label: Tensor  # (R,) z_y
    accumulated: Tensor | None  # (R, H) A
    vocabulary: int
    softcap: float
    ignore: int


def turn_tile(block: Block, z: Tensor, start: int, dtype: torch.dtype | None) -> Tensor | None:
    """Takes the tile `z` (R, C) into the block's state and returns E k' (R, C) in `dtype`; z is used up."""
    if start == 0:
        block.reference.fill_(LOWEST)
        block.total.zero_()
        block.label.fill_(-torch.inf)
    if block.softcap:
        z.tanh_()
        squares = z.square() if dtype is not None else None
        z.mul_(block.softcap)
    target = block.targets.long() - start
    at = target.clamp(0, z.shape[1] - 1)
    here = at == target
    value = z.gather(1, at[:, None]).squeeze(1)
    torch.where(here, value, block.label, out=block.label)
    z.scatter_(1, at[:, None], torch.where(here, -torch.inf, value)[:, None])
    # E reaches up to e^9: float16 has then 38 bits of range below the largest, where below 1 it has 24.
    depth = 9.0 if dtype is torch.float16 else 0.0
    reference = torch.maximum(block.reference, z.amax(1) - depth)
    factor = torch.exp(block.reference - reference)
    block.reference.copy_(reference)
    z.sub_(reference[:, None]).exp_()
    block.total.mul_(factor).add_(z.sum(1))
    if dtype is None:
        return None
    if start > 0:
        block.accumulated.mul_(factor[:, None])
    if block.softcap:
        z.mul_(squares.neg_().add_(1))
    return z.to(dtype)


def finish_block(
    block: Block, weight: Tensor, factors: Tensor, logit_scale: float, losses: Tensor, out: Tensor | None
) -> None:
    """Writes losses (R,) and dx (R, H) of a block whose tiles have all been taken in."""
    kept = block.targets != block.ignore
    others = block.total.log() + block.reference
    loss, miss = weigh(others, block.label)
    losses.copy_((loss * factors).masked_fill_(~kept, 0.0))
    if out is None:
        return
    pull = factors * logit_scale * miss
    push = pull
    if block.softcap:
        push = push * (1 - (block.label / block.softcap).square())
    total = block.total.clamp(min=torch.finfo(block.total.dtype).tiny)
    dx = block.accumulated.mul_((pull / total)[:, None])
    words = weight.index_select(0, block.targets.clamp(0, block.vocabulary - 1))
    dx.addcmul_(words, push[:, None], value=-1)
    out.copy_(dx.masked_fill_(~kept[:, None], 0.0))
