"""What a block is: it adds a branch to the residual stream, forward and backward by hand.

    forward(x) -> (y, saved)        recompute(saved) -> y        backward(dy, saved) -> dx

What `saved` holds is the memory policy's choice; recompute() brings back what backward() needs, in this order. Rows of
gradients are wide, [dY | G] as in fused_lora_linear.py, for the group of linears that takes them next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import torch
from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec


class Saved:
    """What a block keeps between its passes, as fields that are None where they are computed again."""

    __slots__ = ()
    large: ClassVar[tuple[str, ...]]
    """The fields that may wait in the machine's memory."""

    def keep_first(self, count: int) -> None:
        """Keep so many rows of all, in memory of their own. What is no single tensor is theirs alone already."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Tensor):
                setattr(self, one.name, value[:count].clone())

    def move_out(self) -> dict[str, Tensor]:
        """Return the large tensors by name, and let go of them."""
        found = {name: getattr(self, name) for name in self.large if getattr(self, name) is not None}
        for name in found:
            setattr(self, name, None)
        return found

    def move_in(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what move_out() gave."""
        for name, tensor in tensors.items():
            setattr(self, name, tensor)


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows of the residual stream that no group of ours takes: of H `outputs`, without a tail."""

    outputs: int
    dtype: torch.dtype
    device: torch.device

    def widen_gradient(self, count: int) -> Tensor:
        """Return an empty (count, H), as LinearGroup does with its tail."""
        return torch.empty(count, self.outputs, dtype=self.dtype, device=self.device)


class LayerBlock(Protocol):
    """One block of a layer; `S` is its own Saved."""

    spec: LayerSpec
    groups: tuple[LinearGroup, ...]
    """The block's groups of linears; none where the model's own module computes."""
    outer: LinearGroup | StreamRows
    """The group whose result joins the stream, or the form of the rows that join it."""

    def forward(self, x: Tensor, rows: BatchLayout, kernels: Kernels, level: int) -> tuple[Tensor, Saved]:
        """Return y (T, H) and what is kept at `level`, a place in KEEP_LEVELS; -1: nothing (evaluation)."""

    def recompute(self, saved: Saved, y: Tensor | None, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Fill `saved` for backward(), and return y, computed again where it is None."""

    def backward(
        self, dy: Tensor, saved: Saved, rows: BatchLayout, kernels: Kernels, below: LinearGroup | None
    ) -> Tensor | None:
        """Return dx, wide for `below`; None where that is, as nothing below is trained. Uses `saved` up."""


def own_memory(u: Tensor) -> Tensor:
    """Return the tail of wide rows in memory of its own, so that the rest of the rows can go."""
    return u.contiguous() if u.shape[1] else u
