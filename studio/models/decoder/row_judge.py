"""What a token's loss counts, said between the loss head's two directions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class RowJudge(Protocol):
    """Says what each token's loss counts, once the head has computed it."""

    wants_entropy: bool

    def __call__(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        """Return (N,) factors of the rows' gradients, of (N,) losses and, where wanted, entropies."""


def make_entropies(judge: RowJudge | None, targets: Tensor) -> Tensor | None:
    """Return room for the entropies of `targets` (N,), (N,) float32; None where nobody wants them."""
    if judge is None or not judge.wants_entropy:
        return None
    return torch.empty(len(targets), dtype=torch.float32, device=targets.device)
