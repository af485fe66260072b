"""Frozen weights in 8 bits, multiplied on the 8-bit units: twice the rate of 16 bits, and not exact.

    Y = (x8 x_scale) (w8 w_scale)^T + U (s B)^T        dX = (dy8 dy_scale) (v8 v_scale)^T + G A

w8 (out, in) holds W with a scale for each output, v8 (in, out) its transpose with a scale for each input: each product
needs its scales along its own rows. Rounding to e4m3 is off by 2.6 % of a value on average, of weights and of what
meets them; adapters and all sums stay in 16 and 32 bits. The 16-bit weights stay where they are, for whoever writes
answers or saves the model: a weight takes 2 bytes more. Source: Micikevicius et al. 2022, arXiv:2209.05433.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.fp8 import multiply, supports_multiply
from torch import Tensor

from studio.core.i18n import Text, literal, text
from studio.models.decoder.frozen_weights import FrozenWeights, ResidentWeights

if TYPE_CHECKING:
    from studio.models.decoder.decoder import Decoder


def use_fp8(decoder: Decoder, capability: tuple[int, int] | None = None) -> Text | None:
    """Multiply by the frozen weights of `decoder` in 8 bits from here on, or return why not, and change nothing.

    `capability`: of the card. On a processor the numbers are the same, computed by the twin, for comparison.
    """
    groups = [group for layer in decoder.layers for group in layer.groups]
    for weights in (group.weights for group in groups):
        if not isinstance(weights, ResidentWeights):
            return text("model.fp8.quantized")
        support = supports_multiply(
            device_type=weights.device.type,
            capability=capability,
            dtype=weights.dtype,
            inputs=weights.inputs,
            outputs=weights.outputs,
        )
        if weights.device.type != "cpu" and not support.ok:
            return text("model.fp8.unsupported", reason=literal(support.reason))
    for group in groups:
        group.weights = Fp8Weights(group.weights, decoder.kernels)
    return None


def drop_fp8(decoder: Decoder) -> None:
    """Multiply by the 16-bit weights again."""
    for layer in decoder.layers:
        for group in layer.groups:
            if isinstance(group.weights, Fp8Weights):
                group.weights = group.weights.base


class Fp8Weights(FrozenWeights):
    """8-bit copies of what `base` holds; the adapters' tails stay there."""

    exact = False

    def __init__(self, base: FrozenWeights, kernels: Kernels, *, backward: bool = True) -> None:
        """`backward`: whether dX is multiplied in 8 bits, too; else by the 16-bit weights, at half the rate."""
        self.base = base
        self.backward = backward
        self.inputs, self.outputs, self.tail = base.inputs, base.outputs, base.tail
        self.sizes, self.dtype, self.device = base.sizes, base.dtype, base.device
        matrix = base.matrix(kernels)[: self.outputs, : self.inputs]
        self._rows = kernels.fp8.forward(matrix)
        self._columns = kernels.fp8.forward(matrix.T.contiguous()) if backward else None

    def matrix(self, kernels: Kernels) -> Tensor:
        """See Weights: the base's, in 16 bits."""
        return self.base.matrix(kernels)

    def tails(self) -> tuple[Tensor, Tensor]:
        """See Weights."""
        return self.base.tails()

    def release(self) -> None:
        """See Weights; the 8-bit copies go, too."""
        self._rows = self._columns = None
        self.base.release()

    def product(self, x: Tensor, kernels: Kernels, *, add: Tensor | None, out: Tensor | None) -> Tensor:
        """See Weights."""
        return self._forward(x[:, : self.inputs], x[:, self.inputs :], kernels, add, out)

    def product_apart(self, x: Tensor, u: Tensor, kernels: Kernels, *, add: Tensor | None) -> Tensor:
        """See Weights."""
        return self._forward(x, u, kernels, add, None)

    def _forward(
        self, x: Tensor, u: Tensor, kernels: Kernels, add: Tensor | None, out: Tensor | None
    ) -> Tensor:
        bias = add if add is not None and add.dim() == 1 else None
        y = _multiply(x, self._rows, kernels)
        y = _join(y, u, self.tails()[1], kernels, None if bias is not None else add, out)
        return y if bias is None else y.add_(bias)

    def product_back(self, dy: Tensor, kernels: Kernels, *, out: Tensor) -> Tensor:
        """See Weights."""
        if not self.backward:
            return self.base.product_back(dy, kernels, out=out)
        dx = _multiply(dy[:, : self.outputs], self._columns, kernels)
        return _join(dx, dy[:, self.outputs :], self.tails()[0].T, kernels, None, out)


def _multiply(x: Tensor, weight: tuple[Tensor, Tensor], kernels: Kernels) -> Tensor:
    """Return x W^T (T, N), contiguous; `x` is quantised on the way, in one pass."""
    return multiply(*kernels.fp8.forward(x), *weight, x.dtype)


def _join(
    y: Tensor, u: Tensor, b: Tensor, kernels: Kernels, add: Tensor | None, out: Tensor | None
) -> Tensor:
    """Return y + u b^T (+ `add`) in `out`, or in y's place; products cannot be written into wide rows themselves."""
    if u.shape[1]:
        return kernels.fp8.join(y, u, b, add=add, out=out)
    if out is None:
        return y if add is None else y.add_(add)
    return out.copy_(y) if add is None else torch.add(y, add, out=out)
