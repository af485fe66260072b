"""What a token's own input to a layer adds to the residual stream (Gemma 4 E2B and E4B), as the layer's last block.

    g = x Wg^T        h = act(g) p        b = h Wu^T        y = x + norm(b)

    dp = dh act(g)    dg = dh p act'(g)   dx = dy + dg Wg

p (T, P) is the layer's part of what layer_inputs.py makes of the tokens, and dp goes back to it. T rows, H hidden
width, P some 256: all of it is computed again in the backward pass, for 3 % of the layer's products, and nothing is
kept; x is had again from what the MLP keeps. Each product carries its adapters along as in fused_lora_linear.py.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor, empty_like

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.block import own_memory
from studio.models.decoder.blocks.residual import join, join_backward, leave, leave_backward, normalise
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec
from studio.models.decoder.structure import INPUT_GROUPS


class LayerInput:
    """See the file's docstring."""

    group_names = INPUT_GROUPS

    def __init__(
        self,
        spec: LayerSpec,
        gate: LinearGroup,
        up: LinearGroup,
        norm_gradients: dict[str, Tensor | None],
    ) -> None:
        """`norm_gradients`: as SelfAttention takes them."""
        self.spec = spec
        self.input_gate, self.input_up = gate, up
        self.norm_gradients = norm_gradients

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        """See LayerBlock."""
        return self.input_gate, self.input_up

    @property
    def outer(self) -> LinearGroup:
        """See LayerBlock."""
        return self.input_up

    def forward(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Return y (T, H); nothing is kept."""
        return join(self.spec.layer_input_norm, 1.0, self._branch(x, rows, kernels), x, kernels)

    def added(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Return norm(b) (T, H), which forward() adds to x."""
        return normalise(self.spec.layer_input_norm, self._branch(x, rows, kernels), kernels)[0]

    def backward(
        self, dy: Tensor, x: Tensor, rows: BatchLayout, kernels: Kernels, below: LinearGroup
    ) -> Tensor:
        """Return dx (T, H), wide for `below`; `x`: what forward() was given. Fills the layer's part of dp."""
        hidden = x.shape[1]
        dnormal = self.added_backward(dy, x, rows, kernels)
        dx = below.widen_gradient(x.shape[0])
        leave_backward(None, dnormal, x, None, dy[:, :hidden], None, kernels, dx[:, :hidden])
        return dx

    def added_backward(self, dy: Tensor, x: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Return what comes back to x (T, H) by what is added, whose gradient is `dy`. Fills the layer's part of dp."""
        spec, inner = self.spec, self.input_up.inputs
        gate, u_gate = self._open(x, rows, kernels)
        wide, u_up, branch = self._close(gate, rows, kernels)
        gradient = self.norm_gradients.get("layer_input_norm")
        dbranch = join_backward(spec.layer_input_norm, 1.0, dy, branch, self.input_up, gradient, kernels)
        h = wide[:, :inner]
        self.input_up.gradients(dbranch, u_up, kernels)
        self.input_up.gradient_a(dbranch, h, kernels, rows.drops)
        self.input_up.gradient_w(dbranch, h, kernels, branch)
        del wide, h, u_up, branch
        dh = self.input_up.gradient_x(dbranch, kernels, rows.drops)
        del dbranch
        number, dgate = spec.layer_input.number, self.input_gate.widen_gradient(x.shape[0])
        p, room = rows.shared.inputs[:, number], rows.shared.gradients
        dp = empty_like(dh) if room is None else room[:, number]
        kernels.glu.backward(dh, gate, p, spec.layer_input.activation, dgate=dgate[:, :inner], dup=dp)
        self.input_gate.gradients(dgate, u_gate, kernels)
        self.input_gate.gradient_a(dgate, x, kernels, rows.drops)
        self.input_gate.gradient_w(dgate, x, kernels, gate)
        return self.input_gate.gradient_x(dgate, kernels, rows.drops)

    def _branch(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Return b (T, H)."""
        gate, _ = self._open(x, rows, kernels)
        return self._close(gate, rows, kernels)[2]

    def _open(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Return g (T, P) and the gate's U."""
        wide, _ = leave(None, x, self.input_gate, kernels)
        u = self.input_gate.project(x, wide[:, x.shape[1] :], kernels, rows.drops)
        return self.input_gate.forward(wide, kernels), own_memory(u)

    def _close(self, gate: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor]:
        """Return [h | U] (T, P + tail), U, and b (T, H)."""
        layer_input, inner = self.spec.layer_input, self.input_up.inputs
        wide = self.input_up.widen(gate.shape[0])
        h = wide[:, :inner]
        kernels.glu.forward(gate, rows.shared.inputs[:, layer_input.number], layer_input.activation, out=h)
        u = self.input_up.project(h, wide[:, inner:], kernels, rows.drops)
        return wide, u, self.input_up.forward(wide, kernels)
