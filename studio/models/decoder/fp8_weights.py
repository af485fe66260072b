"""Frozen weights in 8 bits, multiplied on the 8-bit units: twice the rate of 16 bits, and not exact.

    Y = (x8 x_scale) (w8 w_scale)^T + U (s B)^T        dX = (dy8 dy_scale) (v8 v_scale) + G A

w8 holds W (out, in) with a scale for each output, v8 its transpose with a scale for each input: each product needs its
scales along its own rows. Rounding to e4m3 is off by 2.6 % of a value on average, of weights and of what meets them;
adapters and all sums stay in 16 and 32 bits.
"""

from __future__ import annotations

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.fp8 import multiply
from torch import Tensor

from studio.models.decoder.weights import Weights


class Fp8Weights(Weights):
    """8-bit copies of `base`, which keeps the modules' own weights and is not read by training any more."""

    def __init__(self, base: Weights, kernels: Kernels) -> None:
        self.base = base
        self.inputs, self.outputs, self.tail = base.inputs, base.outputs, base.tail
        self.sizes, self.dtype, self.device = base.sizes, base.dtype, base.device
        matrix = base.matrix(kernels)[: self.outputs, : self.inputs]
        self._w8, self._w_scale = kernels.fp8.forward(matrix)
        self._v8, self._v_scale = kernels.fp8.forward(matrix.T.contiguous())
        self._rows = torch.zeros(self.tail, self.inputs, dtype=self.dtype, device=self.device)
        self._columns = torch.zeros(self.outputs, self.tail, dtype=self.dtype, device=self.device)

    def matrix(self, kernels: Kernels) -> Tensor:
        """See Weights: the base's, for whoever wants exact weights."""
        return self.base.matrix(kernels)

    def tails(self) -> tuple[Tensor, Tensor]:
        """See Weights."""
        return self._rows, self._columns

    def release(self) -> None:
        """See Weights."""
        self.base.release()

    def product(self, x: Tensor, kernels: Kernels, *, add: Tensor | None, out: Tensor | None) -> Tensor:
        """See Weights."""
        inputs = x[:, : self.inputs]
        y = self._multiply(inputs, self._w8, self._w_scale, kernels, out)
        if self.tail:
            y.addmm_(x[:, self.inputs :], self._columns.T)
        return y if add is None else y.add_(add)

    def product_apart(self, x: Tensor, u: Tensor, kernels: Kernels, *, add: Tensor | None) -> Tensor:
        """See Weights."""
        y = self._multiply(x, self._w8, self._w_scale, kernels, None)
        if self.tail:
            y.addmm_(u, self._columns.T)
        return y if add is None else y.add_(add)

    def product_back(self, dy: Tensor, kernels: Kernels, *, out: Tensor) -> Tensor:
        """See Weights."""
        self._multiply(dy[:, : self.outputs], self._v8, self._v_scale, kernels, out)
        return out.addmm_(dy[:, self.outputs :], self._rows) if dy.shape[1] > self.outputs else out

    @staticmethod
    def _multiply(x: Tensor, w8: Tensor, w_scale: Tensor, kernels: Kernels, out: Tensor | None) -> Tensor:
        x8, x_scale = kernels.fp8.forward(x)
        y = multiply(
            x8, x_scale, w8, w_scale, x.dtype, None if out is None or not out.is_contiguous() else out
        )
        return y if out is None or y.data_ptr() == out.data_ptr() else out.copy_(y)
