"""What a training method is: a name, and how it computes the loss of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from studio.core.text import Text
from studio.engine.batches import Batch


class Loss(Protocol):
    """Computes the loss of one model."""

    note: Text | None
    """What the person should know of how it is computed here."""

    def sum_loss(self, batch: Batch) -> torch.Tensor:
        """Return the sum of the loss over the trained positions, a () fp32 tensor."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way to train: `build_loss(model)` returns its Loss."""

    name: str
    build_loss: Callable[[torch.nn.Module], Loss]
