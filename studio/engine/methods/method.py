"""What a training method is: a name, and how it makes the sum of the loss of a micro-batch from a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from studio.engine.batches import Batch


@dataclass(frozen=True, slots=True)
class Method:
    """A way to train. `build_loss(model)` returns the function from a Batch to the () sum of its loss."""

    name: str
    build_loss: Callable[[torch.nn.Module], Callable[[Batch], torch.Tensor]]
