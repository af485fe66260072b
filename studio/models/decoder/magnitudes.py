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
from itertools import accumulate

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.lora import Diagonal
from studio_kernels.matmul import multiply_into
from studio_kernels.op import PORTION_BYTES
from torch import Tensor, nn

from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.frozen_weights import FrozenWeights, OpenedWeights


class Magnitudes:
    """The lengths of a group's outputs; see the file's docstring."""

    def __init__(
        self,
        vectors: Sequence[nn.Parameter],
        weights: OpenedWeights,
        store: FlatStore,
        db: Sequence[Tensor],
        blocks: Sequence[tuple[int, int, int, int]],
    ) -> None:
        """`vectors`: m of each adapted linear, neighbours in `store`; `db`: where dB of each is added.

        `blocks`: Diagonal's, of each adapted linear.
        """
        self._weights = weights
        self.lengths, self._dm = store.joined(vectors)
        """m of the adapted linears, behind each other."""
        self.wide = self.lengths.dtype
        """Of all sums."""
        self._squares: Tensor | None = None
        self._scale = torch.ones(weights.outputs, dtype=self.wide, device=weights.device)
        weights.row_scale = self._scale
        self._db = tuple(db)
        self._held = weights.hold(sum(one.numel() for one in db), self.wide)
        sums = self._held.split([one.numel() for one in db])
        self.sums = [part.view_as(one) for part, one in zip(sums, db, strict=True)]
        """Where s dY^T U is added up, zero between two calls of add_gradients(): groups of one shape share it."""
        self._runs: list[tuple[slice, slice]] = []
        """Outputs of adapted linears that lie beside each other, and their places in `lengths`."""
        start = 0
        for top, bottom, _, _ in blocks:
            first, place = top, start
            if self._runs and self._runs[-1][0].stop == top:
                first, place = (part.start for part in self._runs.pop())
            start += bottom - top
            self._runs.append((slice(first, bottom), slice(place, start)))

    @property
    def scale(self) -> Tensor:
        """(out,) c; 1 for linears without an adapter."""
        return self._scale

    def refresh(
        self, a: Tensor, b: Sequence[Tensor], diagonal: Diagonal, columns: Tensor, kernels: Kernels
    ) -> None:
        """Take over changed adapters, and write c s B to `columns` (out, tail).

        a (tail, in) as it multiplies; b: (out, r) of each adapted linear.
        """
        opened = self._weights.open_plain(kernels)
        if self._squares is None:
            norms = [torch.linalg.vector_norm(weight, dim=1, dtype=self.wide) for weight in opened]
            self._squares = torch.cat(norms).square_()
        weights = dict(zip(accumulate(self._weights.sizes, initial=0), opened, strict=False))
        wide = a[: diagonal.blocks[-1][3]].to(self.wide)
        gram, start = wide @ wide.T, 0
        for (top, bottom, left, right), own, scale in zip(diagonal.blocks, b, diagonal.scales, strict=True):
            rows, part, end = a[left:right], slice(left, right), start + bottom - top
            weight = weights[top].to(rows.dtype)  # another one in the probe's fp32 twin alone
            met = torch.empty(bottom - top, right - left, dtype=self.wide, device=a.device)
            multiply_into(weight, rows.T, met, add=False)
            met.addmm_(own, gram[part, part], beta=2 * scale, alpha=scale * scale)
            kernels.magnitudes.renew_scale(
                met, own, self._squares[top:bottom], self.lengths[start:end], scale,
                times=self._scale[top:bottom], columns=columns[top:bottom, part],
            )  # fmt: skip
            start = end

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
        if y is not None:
            for part, place in self._runs:
                shift = None if bias is None else bias[part]
                given = dy[:, part], y[:, part], shift, self.lengths[place]
                kernels.magnitudes.add_dots(*given, out=self._dm[place])
        start = 0
        for (top, bottom, _, _), own, out, raw in zip(diagonal.blocks, b, self._db, self.sums, strict=True):
            scale, end = self._scale[top:bottom], start + bottom - top
            if y is None:
                along = self._meet_weights(dy, x, top, bottom, weights, kernels)
                along += (own * raw).sum(1).mul_(scale)
                m = self.lengths[start:end]
                # A row of zeros has no direction: nothing is learned of its length.
                self._dm[start:end].add_(torch.where(m == 0, 0.0, along / m))
            out.addcmul_(raw, scale[:, None])
            start = end
        self._held.zero_()

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
