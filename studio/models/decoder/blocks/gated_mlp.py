"""The gated MLP as a block, in portions of rows where the memory policy asks for them.

    n = norm(x)        g, u = n Wgu^T        h = act(g) u        b = h Wd^T        y = x + b

Where the branch has a norm (Gemma), y = x + norm(b), where it is multiplied (Granite), y = x + m b; where only a
gate's largest values pass (Gemma 3n), h = act(cut(g)) u, as in gate_cut.py. T rows, H hidden width, I width of the MLP.
n and h are always computed again; b never is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.block import Saved, own_memory
from studio.models.decoder.blocks.gate_cut import cut_gate, cut_gate_backward
from studio.models.decoder.blocks.residual import join, join_backward, joins_apart, leave, leave_backward
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec


@dataclass(slots=True)
class SavedMLP(Saved):
    """See Saved."""

    large: ClassVar[tuple[str, ...]] = ("x", "gate_up", "down")
    x: Tensor | None = None
    """(T, H) the block's input."""
    gate_up: Tensor | None = None
    """(T, 2 I)"""
    down: Tensor | None = None
    """(T, H) the down projection's result, where a norm follows it or magnitudes learn from it: always kept."""
    u_gate_up: Tensor | None = None
    u_down: Tensor | None = None

    def cut(self, part: slice) -> SavedMLP:
        """Return what is kept of some of the rows."""
        fields = (self.x, self.gate_up, self.down, self.u_gate_up, self.u_down)
        return SavedMLP(*(None if one is None else one[part] for one in fields))


class GatedMLP:
    """See the file's docstring."""

    def __init__(
        self,
        spec: LayerSpec,
        gate_up: LinearGroup,
        down: LinearGroup,
        norm_gradients: dict[str, Tensor | None],
    ) -> None:
        """`norm_gradients`: as SelfAttention takes them."""
        self.spec = spec
        self.gate_up, self.down = gate_up, down
        self.norm_gradients = norm_gradients

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        """See LayerBlock."""
        return self.gate_up, self.down

    @property
    def outer(self) -> LinearGroup:
        """See LayerBlock."""
        return self.down

    def forward(self, x: Tensor, rows: BatchLayout, kernels: Kernels, level: int) -> tuple[Tensor, SavedMLP]:
        """See LayerBlock."""
        norm, scale, saved = (
            self.spec.output_norm,
            self.spec.residual_scale,
            SavedMLP(x if level >= 1 else None),
        )
        keep = norm is not None or self.down.magnitudes is not None
        apart = keep or joins_apart(norm, scale)
        down = torch.empty_like(x)
        assert not (level >= 3 and rows.mlp_rows), "an MLP in portions is computed again"
        for part, portion in self._portions(rows, x.shape[0]):
            add = None if apart else x[part]
            found = self._compute(x[part], portion, kernels, add, down[part])
            if (
                level >= 3
            ):  # only ever of all rows at once: the planner cuts the MLP where nothing of it is kept
                saved.gate_up, saved.u_gate_up, saved.u_down = found
            del found  # before the next portion makes its own
        if keep and level >= 0:
            saved.down = down
        return (join(norm, scale, down, x, kernels, keep=keep) if apart else down), saved

    def recompute(self, saved: SavedMLP, y: Tensor | None, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """See LayerBlock; gate and up are computed again by backward(), portion by portion."""
        if y is None and saved.down is not None:
            y = join(self.spec.output_norm, self.spec.residual_scale, saved.down, saved.x, kernels, keep=True)
        return self.forward(saved.x, rows, kernels, -1)[0] if y is None else y

    def backward(
        self, dy: Tensor, saved: SavedMLP, rows: BatchLayout, kernels: Kernels, below: LinearGroup | None
    ) -> Tensor:
        """See LayerBlock."""
        hidden = saved.x.shape[1]
        dx = below.widen_gradient(dy.shape[0])
        for part, portion in self._portions(rows, dy.shape[0]):
            self._backward(saved.cut(part), dy[part], portion, kernels, dx[part][:, :hidden])
        saved.x = saved.gate_up = saved.down = None
        return dx

    def _portions(self, rows: BatchLayout, count: int) -> list[tuple[slice, BatchLayout]]:
        size = rows.mlp_rows
        if not size:
            return [(slice(0, count), rows)]
        starts = range(0, count, size)
        return [
            (slice(start, start + size), replace(rows, drops=replace(rows.drops, first_row=start)))
            for start in starts
        ]

    def _compute(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, add: Tensor | None, out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Write the down projection's result (+ `add`) of some rows to `out`; returns gate|up and both U."""
        gate_up, u_gate_up, _ = self._open(x, rows, kernels)
        wide = self.down.widen(gate_up.shape[0])
        h, place = wide[:, : self.down.inputs], wide[:, self.down.inputs :]
        self._activate(gate_up, kernels, h)
        u_down = self.down.project(h, place, kernels, rows.drops)
        self.down.forward(wide, kernels, add=add, out=out)
        return gate_up, u_gate_up, own_memory(u_down)

    def _open(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return gate|up as wide gradient rows (their gradients take their place later), U, and the norm's 1/rms."""
        hidden = x.shape[1]
        wide, r = leave(self.spec.mlp_norm, x, self.gate_up, kernels)
        u = self.gate_up.project(wide[:, :hidden], wide[:, hidden:], kernels, rows.drops)
        gate_up = self.gate_up.widen_gradient(x.shape[0])
        self.gate_up.forward(wide, kernels, out=gate_up[:, : self.gate_up.outputs])
        return gate_up, own_memory(u), r

    def _cut(self, gate: Tensor) -> Tensor:
        """Return what of g passes (T, I): g itself where all does."""
        quantile = self.spec.gate_cut
        return gate if quantile is None else cut_gate(gate, quantile)

    def _halves(self, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.down.inputs
        return gate_up[:, :inner], gate_up[:, inner : 2 * inner]

    def _activate(self, gate_up: Tensor, kernels: Kernels, out: Tensor) -> None:
        """Write h (T, I) to `out`."""
        gate, up = self._halves(gate_up)
        kernels.glu.forward(self._cut(gate), up, self.spec.activation, out=out)

    def _activate_backward(self, h: Tensor, gate_up: Tensor, dgate_up: Tensor, kernels: Kernels) -> None:
        """Write what comes back to gate and up to `dgate_up`, which may be theirs; `h` holds dh, then h, (T, I)."""
        spec, (gate, up), (dgate, dup) = self.spec, self._halves(gate_up), self._halves(dgate_up)
        if spec.gate_cut is None:
            kernels.glu.backward(h, gate, up, spec.activation, dgate=dgate, dup=dup, h=h)
            return
        cut = self._cut(gate)
        kernels.glu.backward(h, cut, up, spec.activation, dgate=cut, dup=dup, h=h)
        cut_gate_backward(cut, gate, spec.gate_cut, dgate)

    def _backward(
        self, saved: SavedMLP, dy: Tensor, rows: BatchLayout, kernels: Kernels, out: Tensor
    ) -> None:
        spec, hidden, inner = self.spec, saved.x.shape[1], self.down.inputs
        ddown = dy
        if joins_apart(spec.output_norm, spec.residual_scale):
            gradient = self.norm_gradients.get("output_norm")
            ddown = join_backward(
                spec.output_norm, spec.residual_scale, dy, saved.down, self.down, gradient, kernels
            )
        gate_up, u_gate_up = saved.gate_up, saved.u_gate_up
        if gate_up is None:
            gate_up, u_gate_up, _ = self._open(saved.x, rows, kernels)
        self.down.gradient_u(ddown, kernels)
        wide = self.down.widen(gate_up.shape[0])
        h = wide[:, :inner]
        self.down.gradient_x(ddown, kernels, rows.drops, out=h)
        # dh's place is taken by h, gate's and up's by their gradients: each element is read before it is written. Where
        # magnitudes are trained, gate and up are needed beside them.
        result, dgate_up = None, gate_up
        if self.gate_up.magnitudes is not None:
            result, dgate_up = gate_up, self.gate_up.widen_gradient(gate_up.shape[0])
        self._activate_backward(h, gate_up, dgate_up, kernels)
        u_down = saved.u_down
        if u_down is None:
            u_down = self.down.project(h, wide[:, inner:], kernels, rows.drops)
        self.down.gradient_b(ddown, u_down, kernels)
        self.down.gradient_a(ddown, h, kernels, rows.drops)
        self.down.gradient_w(ddown, h, kernels, saved.down)
        del wide, h, u_down, gate_up
        self.gate_up.gradients(dgate_up, u_gate_up, kernels)
        wide, r = leave(spec.mlp_norm, saved.x, self.gate_up, kernels)
        normal = wide[:, :hidden]
        self.gate_up.gradient_a(dgate_up, normal, kernels, rows.drops)
        self.gate_up.gradient_w(dgate_up, normal, kernels, result)
        dnormal = self.gate_up.gradient_x(dgate_up, kernels, rows.drops)
        gradient = self.norm_gradients.get("mlp_norm")
        leave_backward(spec.mlp_norm, dnormal, saved.x, r, dy[:, :hidden], gradient, kernels, out)
