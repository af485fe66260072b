"""DoRA: each output of a linear has a length m of its own, which is trained beside the direction of its weights.

    V = W + s B A        n_i = |V_i|        c = m / n        Y = X (c V)^T + bias = [X | U] [c W | c s B]^T + bias
    n_i² = |W_i|² + 2 s B_i · (A W_i^T) + s² B_i (A A^T) B_i^T
    dm_i = V_i · (dY^T X)_i / n_i = Σ_t dY_ti (Y_ti - bias_i) / m_i        dB = c s dY^T U

W (out, in) as opened, A (r, in), B (out, r), m, n, c (out,), s the adapter's scale; T rows. n counts as a constant when
gradients are taken (Liu et al. 2024, arXiv:2402.09353, section 4.3), as in peft. c is the same for all micro-steps
between two steps of the optimizer, so it is multiplied into the rows of the opened weights: all products stay those of
LoRA. V is never made: its lengths need A W^T, a product of r rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.lora import Diagonal
from studio_kernels.matmul import multiply_into
from torch import Tensor, nn

from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.frozen_weights import FrozenWeights, OpenedWeights
from studio.models.decoder.structure import PORTION_BYTES


class Magnitudes:
    """The lengths of a group's outputs; see the file's docstring."""

    def __init__(
        self, vectors: Sequence[nn.Parameter], weights: OpenedWeights, store: FlatStore, db: Sequence[Tensor]
    ) -> None:
        """`vectors`: m of each adapted linear, neighbours in `store`; `db`: where dB of each is added."""
        self._weights = weights
        self.lengths, self._dm = store.joined(vectors)
        """m of the adapted linears, behind each other."""
        self.wide = self.lengths.dtype
        """Of all sums."""
        self._squares: Tensor | None = None
        self._scale = torch.ones(weights.outputs, dtype=self.wide, device=weights.device)
        weights.row_scale = self._scale
        self._db = tuple(db)
        held = weights.hold(sum(one.numel() for one in db), self.wide)
        self.sums = [
            part.view_as(one) for part, one in zip(held.split([one.numel() for one in db]), db, strict=True)
        ]
        """Where s dY^T U is added up, zero between two calls of add_gradients(): groups of one shape share it."""

    @property
    def scale(self) -> Tensor:
        """(out,) c; 1 for linears without an adapter."""
        return self._scale

    def refresh(self, a: Tensor, b: Sequence[Tensor], diagonal: Diagonal, kernels: Kernels) -> None:
        """Take over changed adapters. a (tail, in) as it multiplies; b: (out, r) of each adapted linear."""
        opened = self._weights.open_plain(kernels)
        if self._squares is None:
            self._squares = torch.linalg.vector_norm(opened, dim=1, dtype=self.wide).square_()
        start = 0
        for (top, bottom, left, right), own, scale in zip(diagonal.blocks, b, diagonal.scales, strict=True):
            rows, wide = a[left:right], a[left:right].to(self.wide)
            weight = opened[top:bottom].to(rows.dtype)  # another one in the probe's fp32 twin alone
            met = torch.empty(bottom - top, right - left, dtype=self.wide, device=a.device)
            multiply_into(weight, rows.T, met, add=False)
            met = met.mul_(2 * scale).addmm_(own, wide @ wide.T, alpha=scale * scale)
            squares = (met * own).sum(1).add_(self._squares[top:bottom])
            length = squares.clamp_min_(torch.finfo(self.wide).tiny).sqrt_()
            torch.div(self.lengths[start : start + len(length)], length, out=self._scale[top:bottom])
            start += len(length)

    def add_gradients(
        self,
        dy: Tensor,
        x: Tensor,
        y: Tensor | None,
        bias: Tensor | None,
        b: Sequence[Tensor],
        diagonal: Diagonal,
        weights: FrozenWeights,
        kernels: Kernels,
    ) -> None:
        """Add dm and dB, given dY (T, out) and X (T, in), and what is in `sums`, which is set to zero.

        `y`: (T, out) the group's result with its `bias`, where it is at hand; else dY^T X is made, in portions.
        """
        start = 0
        for (top, bottom, _, _), own, out, raw in zip(diagonal.blocks, b, self._db, self.sums, strict=True):
            scale = self._scale[top:bottom]
            if y is None:
                along = self._meet_weights(dy, x, top, bottom, weights, kernels)
                along += (own * raw).sum(1).mul_(scale)
            else:
                along = self._meet_result(dy, y, bias, top, bottom)
            m = self.lengths[start : start + bottom - top]
            # A row of zeros has no direction: nothing is learned of its length.
            self._dm[start : start + bottom - top].add_(torch.where(m == 0, 0.0, along / m))
            out.addcmul_(raw, scale[:, None])
            raw.zero_()
            start += bottom - top

    def _meet_weights(
        self, dy: Tensor, x: Tensor, top: int, bottom: int, weights: FrozenWeights, kernels: Kernels
    ) -> Tensor:
        """Return c W_i · (dY^T X)_i of some outputs."""
        matrix = weights.matrix(kernels)[:, : x.shape[1]]
        step = max(1, PORTION_BYTES // (x.shape[1] * self.lengths.element_size()))
        found = torch.empty(bottom - top, dtype=self.wide, device=x.device)
        for first in range(top, bottom, step):
            last = min(first + step, bottom)
            # In 16 bits it would be twice as far off as peft's: W_i and (dY^T X)_i are nearly at right angles.
            product = torch.empty(last - first, x.shape[1], dtype=self.wide, device=x.device)
            multiply_into(dy[:, first:last].T, x, product, add=False)
            torch.sum(product.mul_(matrix[first:last]), 1, out=found[first - top : last - top])
        return found

    def _meet_result(self, dy: Tensor, y: Tensor, bias: Tensor | None, top: int, bottom: int) -> Tensor:
        """Return Σ_t dY_ti (Y_ti - bias_i) of some outputs."""
        step = max(1, PORTION_BYTES // (y.shape[0] * y.element_size()))
        found = torch.empty(bottom - top, dtype=self.wide, device=y.device)
        for first in range(top, bottom, step):
            last = min(first + step, bottom)
            place = found[first - top : last - top]
            torch.sum(dy[:, first:last] * y[:, first:last], 0, dtype=self.wide, out=place)
            if bias is not None:
                place.sub_(bias[first:last] * dy[:, first:last].sum(0, dtype=self.wide))
        return found
