"""How undecided a model is at each place: the entropy of its next word, from the loss head's tiles of logits.

    H = log Z - M / Z        Z = sum_j exp(z_j - m)        M = sum_j exp(z_j - m) (z_j - m)

over all V words, label included; z as the loss has it, with its softcap. m is the largest logit so far; when a later
tile has a larger one m', f = exp(m - m'), Z becomes f Z and M becomes f (M + (m - m') Z). In PyTorch for both
implementations: the tile is there anyhow, and is read before they use it up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from studio_kernels.ce_math import LOWEST

SLICES = 8
"""Parts of a tile's rows that are taken one after another: beside the tile stand two copies of one part."""


class EntropySums:
    """What a block of R rows carries from tile to tile."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self._reference, self._total, self._moment = like.new_zeros(3, rows)
        self._reference.fill_(LOWEST)

    def take(self, z: Tensor, softcap: float) -> None:
        """Take in a tile (R, C): of the logits, or of logits / softcap before its tanh; it is left as it is."""
        step = -(-z.shape[0] // SLICES)
        for first in range(0, z.shape[0], step):
            part = slice(first, first + step)
            self._take(z[part].tanh().mul_(softcap) if softcap else z[part].clone(), part)

    def _take(self, z: Tensor, part: slice) -> None:
        before, total, moment = self._reference[part], self._total[part], self._moment[part]
        reference = torch.maximum(before, z.amax(1))
        gone = before - reference
        moment.add_(gone * total).mul_(gone.exp())
        total.mul_(gone.exp())
        z.sub_(reference[:, None])
        shares = z.exp()
        total.add_(shares.sum(1))
        # A word that is ruled out has the share 0 of minus infinity.
        moment.add_(z.mul_(shares).nan_to_num_(0.0).sum(1))
        before.copy_(reference)

    def finish(self, out: Tensor) -> None:
        """Write the entropies (R,) in nats."""
        out.copy_(self._total.log() - self._moment / self._total)
