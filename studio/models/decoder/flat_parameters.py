"""What is trained as one flat buffer, its gradients as another; the parameters are views of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FlatStore:
    """Moves parameters into one buffer, in the order given; each stays the same Parameter with the same name."""

    def __init__(self, runs: Sequence[Sequence[nn.Parameter]], *, align: int = 1) -> None:
        """`runs`: parameters that lie behind each other, each run at a multiple of `align` elements; zeros between."""
        self.parameters = tuple(parameter for run in runs for parameter in run)
        self._places: dict[int, int] = {}
        count = 0
        for run in runs:
            count = -(-count // align) * align
            for parameter in run:
                self._places[id(parameter)] = count
                count += parameter.numel()
        first = self.parameters[0]
        self.weights = torch.zeros(-(-count // align) * align, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.weights)
        self.version = 0
        """Counts up whenever the weights may have changed, so that copies of them are made anew."""
        self._views: dict[int, Tensor] = {}
        for parameter in self.parameters:
            view = self._cut(self.weights, [parameter])
            view.copy_(parameter.detach())
            parameter.data = view
            self._views[id(parameter)] = self._cut(self.gradients, [parameter])

    @property
    def decayed_count(self) -> int:
        """The first so many elements are those to which weight decay applies."""
        return self.weights.numel()

    @property
    def adapters_count(self) -> int:
        """The first so many elements are adapters', where there are any."""
        return self.weights.numel()

    @property
    def parts(self) -> list[slice]:
        """What the optimizer steps apart: decayed, undecayed, each table beside an adapter, and norms beside it."""
        middle, end = self.decayed_count, self.weights.numel()
        return [slice(0, middle), slice(middle, end), slice(end, end)]

    def gradient(self, parameter: nn.Parameter) -> Tensor:
        """Return the place of a parameter's gradient."""
        return self._views[id(parameter)]

    def find_gradient(self, parameter: nn.Parameter | None) -> Tensor | None:
        """Return the place of a parameter's gradient, None where it is not trained."""
        return self._views.get(id(parameter))

    def note_change(self) -> None:
        """Say that weights have changed."""
        self.version += 1

    def clear_gradients(self) -> None:
        """Set all gradients to zero."""
        self.gradients.zero_()

    def joined(self, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
        """Return weights and gradients of neighbours in the buffer, which differ in their first dimension alone."""
        return self._cut(self.weights, parameters), self._cut(self.gradients, parameters)

    def computed(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return what multiplies in the place of neighbours in the buffer."""
        return self._cut(self.weights, parameters)

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()
            parameter.grad = None

    def _cut(self, buffer: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Return where `parameters`, neighbours, lie in `buffer`."""
        start = self._places[id(parameters[0])]
        count = sum(parameter.numel() for parameter in parameters)
        return buffer[start : start + count].view(-1, *parameters[0].shape[1:])
