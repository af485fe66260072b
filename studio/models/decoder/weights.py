"""Where a group's frozen weights live: in one 16-bit matrix, or in 4 bits that are opened when needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.nf4 import Nf4
from torch import Tensor, nn


class Weights(Protocol):
    """Holds W of linears that read the same rows, and the room for their adapters' tails."""

    inputs: int
    outputs: int
    tail: int
    sizes: tuple[int, ...]
    """Outputs of each linear."""
    dtype: torch.dtype
    device: torch.device

    def matrix(self, kernels: Kernels) -> Tensor:
        """Return M (outputs + tail, inputs + tail); what lies below right is never read."""

    def tails(self) -> tuple[Tensor, Tensor]:
        """Return where the adapters go: rows (tail, inputs) and columns (outputs, tail)."""

    def keep_open(self, wanted: bool, kernels: Kernels) -> None:
        """Keep 4-bit weights opened in a matrix of their own, or no longer."""

    def release(self) -> None:
        """Give the modules weights of their own again."""


class ResidentWeights:
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
        return self._matrix[self.outputs :, : self.inputs], self._matrix[: self.outputs, self.inputs :]

    def keep_open(self, wanted: bool, kernels: Kernels) -> None:
        """See Weights: these are open."""

    def release(self) -> None:
        """See Weights."""
        for linear in self._linears:
            linear.weight.data = linear.weight.data.contiguous()


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


class OpenedWeights:
    """bitsandbytes' NF4 weights: opened into a scratch matrix, or into one of their own (`cached`)."""

    def __init__(self, linears: Sequence[nn.Module], tail: int, dtype: torch.dtype, scratch: Scratch) -> None:
        self._packed = [Nf4.of(linear.weight.quant_state, linear.weight.data) for linear in linears]
        self.sizes = tuple(weight.shape[0] for weight in self._packed)
        self.inputs, self.outputs, self.tail = self._packed[0].shape[1], sum(self.sizes), tail
        self.dtype, self.device = dtype, linears[0].weight.device
        self._scratch = scratch
        self._rows = torch.zeros(tail, self.inputs, dtype=dtype, device=self.device)
        self._columns = torch.zeros(self.outputs, tail, dtype=dtype, device=self.device)
        self._own: Tensor | None = None

    def matrix(self, kernels: Kernels) -> Tensor:
        """See Weights."""
        if self._own is not None:
            return self._own
        shape = (self.outputs + self.tail, self.inputs + self.tail)
        matrix, holds = self._scratch.take(shape, self.dtype, self.device, self)
        if not holds:
            self._open(matrix, kernels)
        return matrix

    def _open(self, matrix: Tensor, kernels: Kernels) -> None:
        row = 0
        for weight, size in zip(self._packed, self.sizes, strict=True):
            kernels.nf4.forward(weight, matrix[row : row + size, : self.inputs])
            row += size
        if self.tail:
            matrix[self.outputs :, : self.inputs].copy_(self._rows)
            matrix[: self.outputs, self.inputs :].copy_(self._columns)

    def tails(self) -> tuple[Tensor, Tensor]:
        """See Weights."""
        if self._own is not None:
            return self._own[self.outputs :, : self.inputs], self._own[: self.outputs, self.inputs :]
        self._scratch.forget()
        return self._rows, self._columns

    def keep_open(self, wanted: bool, kernels: Kernels) -> None:
        """See Weights."""
        if wanted and self._own is None:
            shape = (self.outputs + self.tail, self.inputs + self.tail)
            own = torch.zeros(shape, dtype=self.dtype, device=self.device)
            self._open(own, kernels)
            self._own = own
        elif not wanted and self._own is not None:
            rows, columns = self.tails()
            self._rows.copy_(rows)
            self._columns.copy_(columns)
            self._own = None

    def release(self) -> None:
        """See Weights: the modules kept theirs."""
        self._own = None
