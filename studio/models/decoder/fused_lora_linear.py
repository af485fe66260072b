"""Linears that read the same rows, as one matrix product that carries their adapters along in its inner dimension.

    U = X A^T     Y = X W^T + U (s B)^T = [X | U] [W | s B]^T
    G = dY (s B)  dX = dY W + G A = [dY | G] [W ; A]      dA = G^T X      dB = s dY^T U      dW = dY^T X

T rows; X (T, in), Y (T, out), U and G (T, tail); W, A, B of the group's linears below each other, B block-diagonal.
One matrix M (out + tail, in + tail) holds W above left, s B above right and A below left. The tail is the sum of the
ranks, rounded up to 64: a product with 64 columns more costs as much as one with 16 more (measured on an H200), and
saves reading and writing Y and dX once more. Formulas: Hu et al., 2021; checked against float64 autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.lora import Diagonal
from studio_kernels.matmul import multiply_into
from torch import Tensor, nn

from studio.core.i18n import Text, text
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.flat_weights import WIDE, WholeStore
from studio.models.decoder.frozen_weights import FrozenWeights
from studio.models.decoder.magnitudes import Magnitudes


@dataclass(frozen=True, slots=True)
class LinearPart:
    """One linear of a group: its base module, and its adapter where it has one."""

    base: nn.Module
    a: nn.Parameter | None
    b: nn.Parameter | None
    scale: float
    dropout: float
    magnitude: nn.Parameter | None = None
    """(out,) the length of each output's weights, where it is trained (magnitudes.py)."""

    @property
    def rank(self) -> int:
        """0 without an adapter."""
        return 0 if self.a is None else self.a.shape[0]


def read_part(module: nn.Module) -> LinearPart | str:
    """Return `module` (a linear, inside a LoRA layer of peft or not) as a Part, or the name of what is not known."""
    if not hasattr(module, "base_layer"):
        return LinearPart(module, None, None, 0.0, 0.0)
    names = [name for name in module.active_adapters if name in module.lora_A]
    special = module.disable_adapters or module.merged or getattr(module, "fan_in_fan_out", False)
    if len(names) != 1 or special:
        return "adapter"
    (name,) = names
    a, b, dropout = module.lora_A[name], module.lora_B[name], getattr(module.lora_dropout[name], "p", 0.0)
    if a.bias is not None or b.bias is not None or a.weight.dtype not in WIDE:
        return "adapter"
    magnitude = None
    if getattr(module, "lora_variant", None):
        # peft's DoRA drops the base's rows, too, where it drops the adapter's: that is another product.
        if not module.use_dora.get(name) or dropout or name not in module.lora_magnitude_vector:
            return "adapter"
        magnitude = module.lora_magnitude_vector[name].weight
        if magnitude.dtype != a.weight.dtype or magnitude.dim() != 1:
            return "adapter"
    return LinearPart(module.base_layer, a.weight, b.weight, float(module.scaling[name]), dropout, magnitude)


def order_parameters(group: Sequence[LinearPart]) -> list[nn.Parameter]:
    """Return a group's adapter weights in the store's order: every A, which lie below each other, every B, every m."""
    adapted = [part for part in group if part.rank]
    vectors = [part.magnitude for part in adapted if part.magnitude is not None]
    return [part.a for part in adapted] + [part.b for part in adapted] + vectors


def refuse_base(parts: Sequence[LinearPart], dtype: torch.dtype) -> Text | None:
    """Return why a base layer cannot be computed here, or None."""
    for part in parts:
        state = getattr(part.base.weight, "quant_state", None)
        if state is None and (type(part.base) is not nn.Linear or part.base.weight.dtype != dtype):
            return text(
                "model.decoder.weights", kind=type(part.base).__name__, dtype=str(part.base.weight.dtype)
            )
        if state is not None and (state.quant_type != "nf4" or state.blocksize != 64):
            return text("model.decoder.weights", kind=state.quant_type, dtype=str(state.blocksize))
    return None


class LinearGroup:
    """See the file's docstring. `weights` holds W; `store` holds what is trained."""

    def __init__(
        self, parts: Sequence[LinearPart], weights: FrozenWeights, store: FlatStore | None, stream: int
    ) -> None:
        self.parts = tuple(parts)
        self.weights = weights
        self.stream = stream
        """Number of the group's dropout stream."""
        self.inputs, self.outputs, self.tail = weights.inputs, weights.outputs, weights.tail
        adapted = [part for part in parts if part.rank]
        self.rank = sum(part.rank for part in adapted)
        self.dropout = max((part.dropout for part in adapted), default=0.0)
        self.dw = weights.gradient
        """Where W's gradient is added, None where it is frozen; likewise the bias's."""
        self.bias = self.dbias = None
        biases = [getattr(part.base, "bias", None) for part in parts]
        if isinstance(store, WholeStore) and biases[0] is not None:
            self.bias, self.dbias = store.computed(biases), store.joined(biases)[1]
        elif any(bias is not None for bias in biases):
            sizes = weights.sizes
            found = [
                torch.zeros(size, dtype=weights.dtype, device=weights.device) if bias is None else bias
                for bias, size in zip(biases, sizes, strict=True)
            ]
            self.bias = torch.cat([bias.detach().to(weights.dtype) for bias in found])
        self.magnitudes: Magnitudes | None = None
        self._places: tuple[Tensor, Tensor, list[Tensor]] | None = None
        """The tail's rows, where A goes in them, and where each s B goes, made once for as long as they lie there."""
        if not adapted or store is None:
            return
        self.a, self.da = store.joined([part.a for part in adapted])
        # Of each adapted linear: its first and last output, its first and last place in the tail.
        blocks: list[tuple[int, int, int, int]] = []
        row = place = 0
        for part, size in zip(parts, weights.sizes, strict=True):
            if part.rank:
                blocks.append((row, row + size, place, place + part.rank))
                place += part.rank
            row += size
        self._b = tuple(part.b for part in adapted)
        gradients = [store.gradient(part.b) for part in adapted]
        vectors = [part.magnitude for part in adapted if part.magnitude is not None]
        if vectors:
            self.magnitudes = Magnitudes(vectors, weights, store, gradients, blocks)
            gradients = self.magnitudes.sums
        self.diagonal = Diagonal.of(blocks, gradients, [part.scale for part in adapted], weights.tails()[1])

    def refresh(self, kernels: Kernels) -> None:
        """Round the adapter's weights into the matrix; to be called when the optimizer has changed them."""
        if not self.rank:
            return
        rows, columns = self.weights.tails()
        if self._places is None or self._places[0] is not rows:
            blocks = self.diagonal.blocks
            self._places = rows, rows[: self.rank], [columns[a:b, c:d] for a, b, c, d in blocks]
        _, place, places = self._places
        place.copy_(self.a)
        all_b = [b.detach() for b in self._b]
        if self.magnitudes is not None:
            self.magnitudes.refresh(rows, all_b, self.diagonal, columns, kernels)
        else:
            for b, scale, out in zip(all_b, self.diagonal.scales, places, strict=True):
                torch.mul(b, scale, out=out)
        self.weights.note_change()

    def keep_open(self, wanted: bool, kernels: Kernels) -> None:
        """See FrozenWeights; nothing of a matrix that is let go of is held here after it."""
        self._places = None
        self.weights.keep_open(wanted, kernels)

    def release(self) -> None:
        """Give the modules weights of their own again; nothing of the group's own matrix is held here after it."""
        self._places = None
        self.weights.release()

    def widen(self, count: int) -> Tensor:
        """Return an empty (count, in + tail): rows to be filled, and beside them the place of U."""
        return torch.empty(
            count, self.inputs + self.tail, dtype=self.weights.dtype, device=self.weights.device
        )

    def widen_gradient(self, count: int) -> Tensor:
        """Return an empty (count, out + tail) for dY and G."""
        return torch.empty(
            count, self.outputs + self.tail, dtype=self.weights.dtype, device=self.weights.device
        )

    def project(self, x: Tensor, out: Tensor, kernels: Kernels, drops: Drops) -> Tensor:
        """Write U = dropout(X) A^T into `out` (T, tail)."""
        if self.tail:
            x = drops.apply(self, x, kernels)
            kernels.lora.project(x, self.weights.tails()[0], out=out)
        return out

    def forward(
        self, x: Tensor, kernels: Kernels, *, add: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return Y (+ `add`) of wide rows [X | U] (T, in + tail)."""
        if self.bias is None:
            return self.weights.product(x, kernels, add=add, out=out)
        y = self.weights.product(x, kernels, add=self.bias, out=out)
        return y if add is None else y.add_(add)

    def forward_apart(self, x: Tensor, u: Tensor, kernels: Kernels, *, add: Tensor | None = None) -> Tensor:
        """Return Y (+ `add`) of rows X (T, in) and U (T, tail) that do not lie side by side."""
        y = self.weights.product_apart(x, u, kernels, add=add)
        return y if self.bias is None else y.add_(self.bias)

    def gradient_u(self, dy: Tensor, kernels: Kernels) -> None:
        """Fill the tail of wide rows [dY | G]."""
        if self.tail:
            b = self.weights.tails()[1]
            kernels.lora.project(dy[:, : self.outputs], b.T, out=dy[:, self.outputs :])

    def gradient_b(self, dy: Tensor, u: Tensor, kernels: Kernels) -> None:
        """Add dB of every linear to its gradient."""
        if not self.tail:
            return
        diagonal = self.diagonal
        parts = zip(diagonal.blocks, diagonal.gradients, diagonal.scales, strict=True)
        for (top, bottom, left, right), gradient, scale in parts:
            kernels.lora.gradient_b(dy[:, top:bottom], u[:, left:right], scale, out=gradient)

    def gradients(self, dy: Tensor, u: Tensor, kernels: Kernels) -> None:
        """Fill the tail of [dY | G] and add dB, in one reading of dY where the kernels can."""
        if self.tail:
            b = self.weights.tails()[1]
            kernels.lora.gradients(dy[:, : self.outputs], b, u, self.diagonal, g=dy[:, self.outputs :])

    def gradient_a(self, dy: Tensor, x: Tensor, kernels: Kernels, drops: Drops) -> None:
        """Add dA = G^T dropout(X) of wide rows [dY | G]."""
        if self.tail:
            x = drops.apply(self, x, kernels)
            kernels.lora.gradient_a(dy[:, self.outputs : self.outputs + self.rank], x, out=self.da)

    def gradient_w(self, dy: Tensor, x: Tensor, kernels: Kernels, y: Tensor | None = None) -> None:
        """Add what is trained of W itself, of wide rows [dY | G]: dW = dY^T X and the bias's gradient, or magnitudes.

        `y`: the group's result (T, out), where it is at hand. To be called when dB is.
        """
        dy = dy[:, : self.outputs]
        if self.magnitudes is not None:
            given = self.bias, [b.detach() for b in self._b], self.diagonal, self.weights, kernels
            self.magnitudes.add_gradients(dy, x, y, *given)
        if self.dw is None:
            return
        multiply_into(dy.T, x, self.dw, add=True)
        if self.dbias is not None:
            self.dbias.add_(dy.sum(0, dtype=self.dbias.dtype))

    def gradient_x(self, dy: Tensor, kernels: Kernels, drops: Drops, *, out: Tensor | None = None) -> Tensor:
        """Return dX of wide rows [dY | G], into `out` where given."""
        if out is None:
            out = torch.empty(dy.shape[0], self.inputs, dtype=dy.dtype, device=dy.device)
        if not (self.tail and self.dropout):
            return self.weights.product_back(dy, kernels, out=out)
        self.weights.product_back(dy[:, : self.outputs], kernels, out=out)
        through = torch.mm(dy[:, self.outputs :], self.weights.tails()[0])
        return drops.add(self, through, out, kernels)


@dataclass(frozen=True, slots=True)
class Drops:
    """The dropout of one micro-step's adapters: which numbers are drawn depends on seed, group and place alone."""

    seed: Any
    """A () int64 tensor on the device, or None while nothing is dropped (evaluation)."""
    first_row: int = 0
    """Number of the first row, where a portion of the rows is computed."""

    def apply(self, group: LinearGroup, x: Tensor, kernels: Kernels) -> Tensor:
        """Return dropout(X), a new tensor, or X itself while nothing is dropped."""
        if self.seed is None or not group.dropout:
            return x
        return kernels.dropout.forward(x, group.dropout, self.seed, group.stream, row_offset=self.first_row)

    def add(self, group: LinearGroup, dx: Tensor, out: Tensor, kernels: Kernels) -> Tensor:
        """Add what comes back through the dropout to `out` and return it."""
        if self.seed is None:
            return out.add_(dx)
        return kernels.dropout.forward(
            dx, group.dropout, self.seed, group.stream, row_offset=self.first_row, out=out, accumulate=True
        )
