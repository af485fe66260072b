"""Where a group's weights live: in one 16-bit matrix, in 4 bits that are opened when needed, or in what is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.nf4 import Nf4
from torch import Tensor, nn

from studio.models.decoder.flat_weights import WholeStore


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of one M that products read: made once, not at each of a layer's products (3 us of Python each)."""

    matrix: Tensor
    across: Tensor
    """[W | s B]^T (inputs + tail, outputs)"""
    apart: tuple[Tensor, Tensor]
    """W^T (inputs, outputs) and (s B)^T (tail, outputs)."""
    back: dict[int, Tensor]
    """By their rows: [W ; A] (outputs + tail, inputs), and W alone."""
    tails: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, matrix: Tensor, outputs: int, inputs: int) -> _Parts:
        """Return the parts of M (outputs + tail, inputs + tail)."""
        back = {rows: matrix[:rows, :inputs] for rows in (outputs, matrix.shape[0])}
        tails = matrix[outputs:, :inputs], matrix[:outputs, inputs:]
        across = matrix[:outputs].T
        return cls(matrix, across, (across[:inputs], across[inputs:]), back, tails)


class FrozenWeights(ABC):
    """Holds W of linears that read the same rows, and their adapters' tails; multiplies by both at once.

    x: wide rows [X | U] (T, in + tail). dy: wide rows [dY | G] (T, out + tail).
    """

    inputs: int
    outputs: int
    tail: int
    sizes: tuple[int, ...]
    """Outputs of each linear."""
    dtype: torch.dtype
    device: torch.device
    gradient: Tensor | None = None
    """(outputs, inputs) where the gradient of W is added, None while it is frozen."""
    exact: bool = True
    """Whether products are those of the modules' own weights but for rounding."""
    _parts: _Parts | None = None

    @abstractmethod
    def matrix(self, kernels: Kernels) -> Tensor:
        """Return M (outputs + tail, inputs + tail); what lies below right is never read."""

    @abstractmethod
    def tails(self) -> tuple[Tensor, Tensor]:
        """Return where the adapters go: rows A (tail, inputs) and columns s B (outputs, tail)."""

    @abstractmethod
    def release(self) -> None:
        """Give the modules weights of their own again."""

    def note_change(self) -> None:  # noqa: B027 - only opened weights need it
        """Hear that the tails have changed."""

    def keep_open(self, wanted: bool, kernels: Kernels) -> None:  # noqa: B027 - likewise
        """Keep 4-bit weights opened in a matrix of their own, or no longer."""

    def product(self, x: Tensor, kernels: Kernels, *, add: Tensor | None, out: Tensor | None) -> Tensor:
        """Return Y = X W^T + U (s B)^T (+ `add`, (T, out) or (out,)), into `out` where given."""
        matrix = self._take_parts(self.matrix(kernels)).across
        out = torch.empty(x.shape[0], self.outputs, dtype=x.dtype, device=x.device) if out is None else out
        return torch.mm(x, matrix, out=out) if add is None else torch.addmm(add, x, matrix, out=out)

    def product_apart(self, x: Tensor, u: Tensor, kernels: Kernels, *, add: Tensor | None) -> Tensor:
        """Return Y of X (T, in) and U (T, tail) that do not lie side by side."""
        base, tail = self._take_parts(self.matrix(kernels)).apart
        y = torch.mm(x, base) if add is None else torch.addmm(add, x, base)
        return y.addmm_(u, tail) if self.tail else y

    def product_back(self, dy: Tensor, kernels: Kernels, *, out: Tensor) -> Tensor:
        """Write dX = dY W + G A to `out` (T, in); without the second term where dy is (T, out)."""
        return torch.mm(dy, self._take_parts(self.matrix(kernels)).back[dy.shape[1]], out=out)

    def _take_parts(self, matrix: Tensor) -> _Parts:
        """Return the parts of `matrix`, where M lies now."""
        parts = self._parts
        if parts is None or parts.matrix is not matrix:
            parts = self._parts = _Parts.of(matrix, self.outputs, self.inputs)
        return parts


class ResidentWeights(FrozenWeights):
    """16- or 32-bit weights, moved into M once; the modules' parameters become views of it."""

    def __init__(self, linears: Sequence[nn.Module], tail: int) -> None:
        first = linears[0].weight
        self.sizes = tuple(linear.weight.shape[0] for linear in linears)
        self.inputs, self.outputs, self.tail = first.shape[1], sum(self.sizes), tail
        self.dtype, self.device = first.dtype, first.device
        self._linears = tuple(linears)
        self._matrix = torch.zeros(
            self.outputs + tail, self.inputs + tail, dtype=self.dtype, device=self.device
        )
        row = 0
        for linear, size in zip(linears, self.sizes, strict=True):
            view = self._matrix[row : row + size, : self.inputs]
            view.copy_(linear.weight.detach())
            linear.weight.data = view
            row += size

    def matrix(self, kernels: Kernels) -> Tensor:
        """See Weights."""
        return self._matrix

    def tails(self) -> tuple[Tensor, Tensor]:
        """See Weights."""
        return self._take_parts(self._matrix).tails

    def release(self) -> None:
        """See Weights. M goes, so that no more than one group's weights are there twice."""
        self._parts = None
        for linear in self._linears:
            linear.weight.data = linear.weight.data.clone(memory_format=torch.contiguous_format)
        self._matrix = self._matrix.new_empty(0, 0)


class TrainedWeights(FrozenWeights):
    """W is trained itself: a part of a store's flat copy, without tails."""

    tail = 0

    def __init__(self, linears: Sequence[nn.Module], store: WholeStore) -> None:
        weights = [linear.weight for linear in linears]
        self.sizes = tuple(weight.shape[0] for weight in weights)
        self._matrix, self.gradient = store.computed(weights), store.joined(weights)[1]
        self.outputs, self.inputs = self._matrix.shape
        self.dtype, self.device = self._matrix.dtype, self._matrix.device

    def matrix(self, kernels: Kernels) -> Tensor:
        """See Weights."""
        return self._matrix

    def tails(self) -> tuple[Tensor, Tensor]:
        """See Weights: there are none."""
        return self._matrix[self.outputs :], self._matrix[:, self.inputs :]

    def release(self) -> None:
        """See Weights: the store gives the modules theirs."""
        self._parts = None
        self._matrix = self._matrix.new_empty(0, 0)
        self.gradient = None


@dataclass(slots=True)
class Scratch:
    """One buffer a shape, in which 4-bit weights are opened; remembers whose weights it holds."""

    buffers: dict[tuple, Tensor] = field(default_factory=dict)
    owners: dict[tuple, object] = field(default_factory=dict)

    def take(
        self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, owner: object
    ) -> tuple[Tensor, bool]:
        """Return the buffer of that shape, and whether it holds what `owner` put there last."""
        key = (shape, dtype, device)
        if key not in self.buffers:
            self.buffers[key] = torch.zeros(shape, dtype=dtype, device=device)
        holds = self.owners.get(key) is owner
        self.owners[key] = owner
        return self.buffers[key], holds

    def forget(self) -> None:
        """Count every buffer as holding nobody's weights."""
        self.owners.clear()


def read_nf4(linear: nn.Module) -> Nf4 | None:
    """Return the packed weight of a linear in 4 bits, None for one in 16 or 32."""
    state = getattr(linear.weight, "quant_state", None)
    return None if state is None else Nf4.of(state, linear.weight.data)


class OpenedWeights(FrozenWeights):
    """bitsandbytes' NF4 weights: opened into a scratch matrix, or into one of their own (`keep_open`).

    Also 16- or 32-bit weights whose rows are multiplied by what changes (`row_scale`): in a matrix of their own they
    are opened once between two changes.
    """

    row_scale: Tensor | None = None
    """(outputs,) by which the rows of W are multiplied as they are opened (magnitudes.py); the tails hold theirs."""

    def __init__(self, linears: Sequence[nn.Module], tail: int, dtype: torch.dtype, scratch: Scratch) -> None:
        self._linears = tuple(linears)
        self._packed = [read_nf4(linear) for linear in linears]
        self.sizes = tuple(
            linear.weight.shape[0] if one is None else one.shape[0] for linear, one in self._pairs()
        )
        first = self._packed[0]
        self.inputs = linears[0].weight.shape[1] if first is None else first.shape[1]
        self.outputs, self.tail = sum(self.sizes), tail
        self.dtype, self.device = dtype, linears[0].weight.device
        self._scratch = scratch
        self._rows = torch.zeros(tail, self.inputs, dtype=dtype, device=self.device)
        self._columns = torch.zeros(self.outputs, tail, dtype=dtype, device=self.device)
        self._own: Tensor | None = None
        self._stale = False
        """Whether `row_scale` has changed since `_own` was opened."""

    def matrix(self, kernels: Kernels) -> Tensor:
        """See Weights."""
        if self._own is not None:
            if self._stale:
                self._open_rows(self._own, kernels)
                self._stale = False
            return self._own
        matrix, holds = self._scratch.take(self._shape, self.dtype, self.device, self)
        if not holds:
            self._open(matrix, kernels)
        return matrix

    @property
    def _shape(self) -> tuple[int, int]:
        return self.outputs + self.tail, self.inputs + self.tail

    def _pairs(self) -> Iterator[tuple[nn.Module, Nf4 | None]]:
        return zip(self._linears, self._packed, strict=True)

    def hold(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return zeros (count,) that all groups which ask for as many share."""
        return self._scratch.take((count, 1), dtype, self.device, None)[0].view(-1)

    def open_plain(self, kernels: Kernels) -> list[Tensor]:
        """Return W (out, inputs) of each linear without `row_scale`: in 16 or 32 bits its own, no copy of it.

        What is opened of 4 bits is there until anything else is opened.
        """
        if all(weight is None for weight in self._packed):
            return [linear.weight.detach() for linear in self._linears]
        matrix, _ = self._scratch.take(self._shape, self.dtype, self.device, None)
        places = matrix[: self.outputs, : self.inputs].split(self.sizes)
        found = []
        for (linear, weight), place in zip(self._pairs(), places, strict=True):
            found.append(
                linear.weight.detach()
                if weight is None
                else self._decode(linear, weight, place, None, kernels)
            )
        return found

    def _open(self, matrix: Tensor, kernels: Kernels) -> None:
        self._open_rows(matrix, kernels)
        if self.tail:
            matrix[self.outputs :, : self.inputs].copy_(self._rows)
            matrix[: self.outputs, self.inputs :].copy_(self._columns)

    def _open_rows(self, matrix: Tensor, kernels: Kernels) -> None:
        """Fill all of `matrix` but the tails."""
        row = 0
        for (linear, weight), size in zip(self._pairs(), self.sizes, strict=True):
            place, times = matrix[row : row + size, : self.inputs], None
            if self.row_scale is not None:
                times = self.row_scale[row : row + size]
            if weight is not None:
                self._decode(linear, weight, place, times, kernels)
            elif times is None:
                place.copy_(linear.weight.detach())
            else:
                kernels.magnitudes.scale_rows(linear.weight.detach(), times, out=place)
            row += size

    def _decode(
        self, linear: nn.Module, weight: Nf4, place: Tensor, times: Tensor | None, kernels: Kernels
    ) -> Tensor:
        """Open a weight in 4 bits into `place` (out, inputs), its rows times `times` (out,) where given."""
        if kernels.implementations["nf4"] == "triton" or self.device.type != "cuda":
            return kernels.nf4.forward(weight, place, times)
        from bitsandbytes.functional import dequantize_4bit

        # Without Triton the library's own kernel: the twin takes 5 to 8 times as long on an H200.
        place.copy_(dequantize_4bit(linear.weight.data, linear.weight.quant_state))
        return place if times is None else kernels.magnitudes.scale_rows(place, times, out=place)

    def tails(self) -> tuple[Tensor, Tensor]:
        """See Weights."""
        return (self._rows, self._columns) if self._own is None else self._take_parts(self._own).tails

    def note_change(self) -> None:
        """See Weights."""
        self._scratch.forget()
        self._stale = self.row_scale is not None

    def keep_open(self, wanted: bool, kernels: Kernels) -> None:
        """See Weights."""
        if wanted and self._own is None:
            own = torch.zeros(self._shape, dtype=self.dtype, device=self.device)
            self._open(own, kernels)
            self._own, self._stale = own, False
        elif not wanted and self._own is not None:
            rows, columns = self.tails()
            self._rows.copy_(rows)
            self._columns.copy_(columns)
            self._own = self._parts = None

    def release(self) -> None:
        """See Weights: the modules kept theirs."""
        self._own = self._parts = None
