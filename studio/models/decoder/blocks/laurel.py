"""A narrow map beside attention, which reads the same rows (Laurel, in Gemma 3n), and how both join the stream.

    n = norm(x)        l = n + norm(n Wl^T Wr^T)        z = (y + l) / sqrt 2

y = x + ... is what attention made of the stream. All is computed again in the backward pass: Wl and Wr are some 64
columns narrow. T rows, H hidden width. Source: Menghani et al. 2024, arXiv:2411.07501.
"""

from __future__ import annotations

from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.residual import join, join_backward, leave, leave_backward
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.spec import LayerSpec
from studio.models.decoder.structure import LAUREL_GROUPS

SHARE = 2.0**-0.5
"""By which the sum of both is multiplied."""


class Laurel:
    """See the file's docstring."""

    group_names = LAUREL_GROUPS

    def __init__(
        self,
        spec: LayerSpec,
        left: LinearGroup,
        right: LinearGroup,
        norm_gradients: dict[str, Tensor | None],
    ) -> None:
        """`norm_gradients`: as SelfAttention takes them."""
        self.spec = spec
        self.laurel_left, self.laurel_right = left, right
        self.norm_gradients = norm_gradients

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        """See LayerBlock."""
        return self.laurel_left, self.laurel_right

    @property
    def outer(self) -> LinearGroup:
        """See LayerBlock."""
        return self.laurel_right

    def forward(self, x: Tensor, y: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Return z (T, H) of the layer's rows x and attention's result y."""
        wide, _, _ = self._open(x, rows, kernels)
        narrow, _ = self._narrow(wide, rows, kernels)
        branch = self.laurel_right.forward(narrow, kernels)
        found = join(self.spec.laurel_norm, 1.0, branch, wide[:, : x.shape[1]], kernels)
        return found.add_(y).mul_(SHARE)

    def backward(self, dz: Tensor, x: Tensor, dx: Tensor | None, rows: BatchLayout, kernels: Kernels) -> None:
        """Add what comes back by l to `dx` (T, H), None where nothing is trained below; `dz` is that of y and l."""
        left, right, hidden = self.laurel_left, self.laurel_right, x.shape[1]
        wide, u_left, r = self._open(x, rows, kernels)
        normal = wide[:, :hidden]
        narrow, u_right = self._narrow(wide, rows, kernels)
        branch = right.forward(narrow, kernels)
        gradient = self.norm_gradients.get("laurel_norm")
        dbranch = join_backward(self.spec.laurel_norm, 1.0, dz, branch, right, gradient, kernels)
        inner = narrow[:, : right.inputs]
        right.gradients(dbranch, u_right, kernels)
        right.gradient_a(dbranch, inner, kernels, rows.drops)
        right.gradient_w(dbranch, inner, kernels, branch)
        dinner = left.widen_gradient(x.shape[0])
        right.gradient_x(dbranch, kernels, rows.drops, out=dinner[:, : left.outputs])
        left.gradients(dinner, u_left, kernels)
        left.gradient_a(dinner, normal, kernels, rows.drops)
        left.gradient_w(dinner, normal, kernels, inner)
        if dx is not None:
            dnormal = left.gradient_x(dinner, kernels, rows.drops).add_(dz)
            gradient = self.norm_gradients.get("input_norm")
            leave_backward(self.spec.input_norm, dnormal, x, r, dx, gradient, kernels, dx)

    def _open(self, x: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return [n | U] (T, H + tail), U, and the norm's 1/rms."""
        wide, r = leave(self.spec.input_norm, x, self.laurel_left, kernels)
        u = self.laurel_left.project(wide[:, : x.shape[1]], wide[:, x.shape[1] :], kernels, rows.drops)
        return wide, u, r

    def _narrow(self, wide: Tensor, rows: BatchLayout, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Return [n Wl^T | U] (T, columns + tail) and U."""
        columns = self.laurel_right.inputs
        narrow = self.laurel_right.widen(wide.shape[0])
        inner = narrow[:, :columns]
        self.laurel_left.forward(wide, kernels, out=inner)
        return narrow, self.laurel_right.project(inner, narrow[:, columns:], kernels, rows.drops)
