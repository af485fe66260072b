"""An MLP and experts side by side, each with norms of its own (Gemma 4).

    b = norm_1(mlp(norm(x))) + norm_2(experts(norm_3(x)))        y = x + norm_4(b)

The router reads x itself, and which experts a token passes never is computed again; nor are the results of MLP and
experts, as norms follow them. T rows, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio_kernels.dispatch import Kernels
from torch import Tensor, zeros_like

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.block import StreamRows
from studio.models.decoder.blocks.experts import SavedExperts, all_rows
from studio.models.decoder.blocks.residual import join, join_backward, leave_backward, normalise
from studio.models.decoder.blocks.routed_mlp import RoutedMLP, SavedRoutedMLP
from studio.models.decoder.fused_lora_linear import LinearGroup


@dataclass(slots=True)
class SavedPairedMLP(SavedRoutedMLP):
    """See Saved; `down` is the experts' result."""

    large: ClassVar[tuple[str, ...]] = (*SavedRoutedMLP.large, "shared_down")
    shared_down: Tensor | None = None
    """(T, H) the MLP's result."""


class PairedMLP(RoutedMLP):
    """See the file's docstring."""

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, level: int
    ) -> tuple[Tensor, SavedPairedMLP]:
        """See LayerBlock."""
        spec, experts = self.spec, self.experts
        inner = SavedExperts(experts.router.forward(x))
        saved = SavedPairedMLP(inner, x if level >= 1 else None)
        normal, _ = normalise(spec.mlp_norm, x, kernels)
        shared = experts.shared.open(normal, *all_rows(x), kernels)
        shared_down = experts.shared.close(shared, *all_rows(x), kernels)
        normal, _ = normalise(spec.routed_norm, x, kernels)
        kept, down = experts.run_routed(normal, inner.routes, kernels)
        del normal
        if level >= 3:
            inner.routed, inner.shared = kept, shared
        if level >= 0:
            saved.down, saved.shared_down = down, shared_down
        return join(spec.output_norm, 1.0, self._add(down, shared_down, kernels), x, kernels), saved

    def backward(
        self,
        dy: Tensor,
        saved: SavedPairedMLP,
        rows: BatchLayout,
        kernels: Kernels,
        below: LinearGroup | StreamRows,
    ) -> Tensor:
        """See LayerBlock."""
        spec, experts, inner, x = self.spec, self.experts, saved.inner, saved.x
        branch = self._add(saved.down, saved.shared_down, kernels)
        dbranch = self._through(spec.output_norm, dy, branch, kernels, "output_norm")
        ddown = self._through(spec.experts_norm, dbranch, saved.down, kernels, "experts_norm")
        dshared = self._through(spec.shared_norm, dbranch, saved.shared_down, kernels, "shared_norm")
        saved.down = saved.shared_down = None
        del branch, dbranch
        normal, r = normalise(spec.routed_norm, x, kernels)
        drouter = zeros_like(x)
        dnormal = experts.backward_routed(ddown, normal, inner, kernels, router_rows=x, drouter=drouter)
        dx = drouter.add_(dy)
        self._leave(spec.routed_norm, dnormal, x, r, dx, kernels, dx, "routed_norm")
        normal, r = normalise(spec.mlp_norm, x, kernels)
        if inner.shared is None:
            inner.shared = experts.shared.open(normal, *all_rows(x), kernels)
        dnormal, _ = experts.shared.backward(dshared, normal, inner.shared, None, *all_rows(x), kernels)
        inner.shared = saved.x = None
        out = below.widen_gradient(dy.shape[0])
        self._leave(spec.mlp_norm, dnormal, x, r, dx, kernels, out[:, : x.shape[1]], "mlp_norm")
        return out

    def _add(self, down: Tensor, shared_down: Tensor, kernels: Kernels) -> Tensor:
        """Return b (T, H)."""
        spec = self.spec
        shared, _ = normalise(spec.shared_norm, shared_down, kernels)
        routed, _ = normalise(spec.experts_norm, down, kernels)
        return shared.add_(routed)

    def _through(self, norm, dy: Tensor, branch: Tensor, kernels: Kernels, name: str) -> Tensor:
        return join_backward(norm, 1.0, dy, branch, self.outer, self.norm_gradients.get(name), kernels)

    def _leave(
        self, norm, dn: Tensor, x: Tensor, r: Tensor, dy: Tensor, kernels: Kernels, out: Tensor, name: str
    ) -> None:
        leave_backward(norm, dn, x, r, dy, self.norm_gradients.get(name), kernels, out)
