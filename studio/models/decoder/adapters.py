"""All adapter weights of a decoder as one flat fp32 buffer, their gradients as another; the modules keep views.

A: (rank, inputs)   B: (outputs, rank)   of each adapted linear; y = x W^T + scale (x A^T) B^T (Hu et al., 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class AdapterStore:
    """Moves parameters into one buffer, in the order given; each stays the same Parameter with the same name."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        count, first = sum(parameter.numel() for parameter in parameters), parameters[0]
        self.parameters = tuple(parameters)
        self.weights = torch.empty(count, dtype=torch.float32, device=first.device)
        self.gradients = torch.zeros_like(self.weights)
        self.version = 0
        """Counts up whenever the weights may have changed, so that copies of them are made anew."""
        self._views: dict[int, Tensor] = {}
        place = 0
        for parameter in self.parameters:
            part = slice(place, place + parameter.numel())
            view = self.weights[part].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            self._views[id(parameter)] = self.gradients[part].view(parameter.shape)
            place = part.stop

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """Return the place of a parameter's gradient."""
        return self._views[id(parameter)]

    def clear_gradients(self) -> None:
        """Set all gradients to zero."""
        self.gradients.zero_()

    def hand_over_gradients(self) -> None:
        """Give every parameter its gradient, for an optimizer that asks the parameters."""
        for parameter in self.parameters:
            parameter.grad = self._views[id(parameter)]

    def joined(self, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
        """Return weights and gradients of neighbours in the buffer with equal last dimensions as two matrices."""
        rows = sum(parameter.shape[0] for parameter in parameters)
        first = parameters[0]
        start = first.data.storage_offset()
        part = slice(start, start + rows * first.shape[1])
        return self.weights[part].view(rows, -1), self.gradients[part].view(rows, -1)

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
            parameter.grad = None
