"""The MLP without a gate as a block: u = n Wu^T, h = relu(u)^2, else as in gated_mlp.py (Nemotron-H, Arcee).

Where that file says gate_up, u (T, I) stands alone here. Source of the activation: So et al. 2021, arXiv:2109.08668.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.decoder.blocks.gated_mlp import GatedMLP
from studio.models.decoder.blocks.gates import square_relu, square_relu_backward


class PlainMLP(GatedMLP):
    """See the file's docstring."""

    def _activate(self, gate_up: Tensor, kernels: Kernels, out: Tensor) -> None:
        """See GatedMLP."""
        square_relu(gate_up[:, : self.down.inputs], out=out)

    def _activate_backward(self, h: Tensor, gate_up: Tensor, dgate_up: Tensor, kernels: Kernels) -> None:
        """See GatedMLP."""
        inner = self.down.inputs
        square_relu_backward(h, gate_up[:, :inner], out=dgate_up[:, :inner], h=h)
