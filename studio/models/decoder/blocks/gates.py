"""What stands between the two products of an expert: h of gate and up, forward and backward.

h = act(g) u        or, clamped (gpt-oss), h = (u' + 1) g' sigma(alpha g')        or, without a gate, h = relu(u)^2
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from studio_kernels.dispatch import Kernels
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PlainGate:
    """act(g) u of one of the op's kinds; gate and up are the halves of their rows."""

    kind: str

    def forward(self, gate_up: Tensor, kernels: Kernels) -> Tensor:
        """Return h (S, I) of (S, 2 I)."""
        return kernels.glu.forward(*gate_up.chunk(2, 1), self.kind)

    def backward(self, dh: Tensor, gate_up: Tensor, kernels: Kernels) -> Tensor:
        """Return the gradient of `gate_up`, in its place."""
        gate, up = gate_up.chunk(2, 1)
        kernels.glu.backward(dh, gate, up, self.kind, dgate=gate, dup=up)
        return gate_up


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """(u' + 1) g' sigma(alpha g') with g' = min(g, limit), u' = clamp(u, -limit, limit); gate and up alternate."""

    alpha: float
    limit: float

    def forward(self, gate_up: Tensor, kernels: Kernels) -> Tensor:
        """See PlainGate."""
        gate = gate_up[:, ::2].clamp(max=self.limit)
        up = gate_up[:, 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))

    def backward(self, dh: Tensor, gate_up: Tensor, kernels: Kernels) -> Tensor:
        """See PlainGate."""
        gate, up = gate_up[:, ::2].clamp(max=self.limit), gate_up[:, 1::2].clamp(-self.limit, self.limit)
        share = torch.sigmoid(gate * self.alpha)
        dgate = dh * (up + 1) * share * (1 + self.alpha * gate * (1 - share))
        dup = dh * gate * share
        gate_up[:, ::2] = dgate.masked_fill_(gate_up[:, ::2] > self.limit, 0)
        gate_up[:, 1::2] = dup.masked_fill_(gate_up[:, 1::2].abs() > self.limit, 0)
        return gate_up


SQUARED = "relu2"
"""What configs call relu(u)^2, the activation of MLPs without a gate."""


@dataclass(frozen=True, slots=True)
class SquaredRelu:
    """relu(u)^2 of up alone, (S, I) where the others read (S, 2 I) (Nemotron-H)."""

    def forward(self, gate_up: Tensor, kernels: Kernels) -> Tensor:
        """See PlainGate."""
        return square_relu(gate_up)

    def backward(self, dh: Tensor, gate_up: Tensor, kernels: Kernels) -> Tensor:
        """See PlainGate."""
        return square_relu_backward(dh, gate_up, out=gate_up)


def square_relu(up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return h = relu(u)^2 of up (T, I), in `out` where given."""
    return torch.square(torch.relu(up), out=out)


def square_relu_backward(dh: Tensor, up: Tensor, *, out: Tensor, h: Tensor | None = None) -> Tensor:
    """Return du = 2 relu(u) dh in `out`, which may be `up`; h in a place of its own where given, which may be dh."""
    active = torch.relu(up)
    torch.mul(active, dh, out=out).mul_(2)
    if h is not None:
        torch.square(active, out=h)
    return out
