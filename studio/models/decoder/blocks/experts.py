"""Experts as a block: a router, gated MLPs of which each token passes k, and perhaps one that all tokens pass.

    r, w = router(x)        g|u = x_s Wgu_e^T + bgu_e        h = act(g, u)        d = h Wd_e^T + bd_e
    y = sum_j w_j d_j + sigma(x ws^T) shared(x)

x_s are the S = T k rows of x sorted by expert; sigma stands for 1 where the shared expert has no gate. Backward, with
t = W_d^T dy before weighting: dw = <t, h> + <dy, bd>, which needs no d, and dh = w t. x is what the block's norm gives:
norm and residual are the layer's. Routes are kept and never computed again, so that none can change between the passes.
T tokens, H hidden width, I width of an expert, E experts, R rank. Adapters: A (E, R, in), B (E, out, R).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.grouped_matmul import Groups
from studio_kernels.matmul import multiply_into
from studio_kernels.nf4 import Nf4
from torch import Tensor

from studio.models.decoder.blocks.block import Saved
from studio.models.decoder.blocks.gates import ClampedGate, PlainGate, SquaredRelu
from studio.models.decoder.blocks.router import Router, Routes


@dataclass(kw_only=True, slots=True)
class GroupedLinear:
    """One linear of every expert, with an adapter of each where `a` is given."""

    weight: Tensor | Nf4
    """(E, out, in) of any strides, or (E out, in) packed, (E in, out) where `flipped`."""
    flipped: bool = False
    bias: Tensor | None = None
    """(E, out), frozen."""
    a: Tensor | None = None
    """(E, R, in), as it multiplies: in the rows' dtype."""
    b: Tensor | None = None
    """(E, out, R), likewise."""
    scale: float = 1.0
    da: Tensor | None = None
    """Shaped as `a`, float32 (float64 in comparisons): added to. Likewise `db` and `dweight`; None: frozen."""
    db: Tensor | None = None
    dweight: Tensor | None = None

    def project(self, x: Tensor, groups: Groups, kernels: Kernels) -> Tensor | None:
        """Return U (S, R), None without adapters."""
        if self.a is None:
            return None
        return kernels.grouped_matmul.product(x, self.a, groups, scale=self.scale)

    def forward(
        self, x: Tensor, experts: Tensor, groups: Groups, kernels: Kernels
    ) -> tuple[Tensor, Tensor | None]:
        """Return Y (S, out) and U (S, R), s x A^T, of rows x (S, in)."""
        u = self.project(x, groups, kernels)
        tail = None if u is None else (u, self.b)
        y = kernels.grouped_matmul.product(x, self.weight, groups, transposed=self.flipped, tail=tail)
        if self.bias is not None:
            y.add_(self.bias.index_select(0, experts))
        return y, u

    def gradient_x(self, dy: Tensor, groups: Groups, kernels: Kernels) -> tuple[Tensor, Tensor | None]:
        """Return dX (S, in) and G (S, R)."""
        op, g, tail = kernels.grouped_matmul, None, None
        if self.a is not None:
            g = op.product(dy, self.b, groups, transposed=True, scale=self.scale)
            tail = g, self.a.transpose(1, 2)
        return op.product(dy, self.weight, groups, transposed=not self.flipped, tail=tail), g

    def add_gradients(
        self,
        dy: Tensor,
        x: Tensor,
        u: Tensor | None,
        g: Tensor | None,
        groups: Groups,
        kernels: Kernels,
        weights: Tensor | None = None,
    ) -> None:
        """Add dA, dB and dW of dY (S, out), times `weights` (S, 1) where dY comes without them."""
        op = kernels.grouped_matmul
        if self.da is not None:
            op.gradient(g if weights is None else (g * weights).to(g.dtype), x, groups, out=self.da)
        if self.db is not None:
            op.gradient(dy, u if weights is None else (u * weights).to(u.dtype), groups, out=self.db)
        if self.dweight is not None:
            op.gradient(dy, x if weights is None else (x * weights).to(x.dtype), groups, out=self.dweight)


@dataclass(slots=True)
class Kept:
    """What gated MLPs keep of their S rows."""

    gate_up: Tensor
    u_gate_up: Tensor | None
    u_down: Tensor | None


@dataclass(kw_only=True, slots=True)
class GatedExperts:
    """The MLPs of all experts, gated ones or such that have `up` alone where `gate_up` is said."""

    gate_up: GroupedLinear
    down: GroupedLinear
    gate: PlainGate | ClampedGate | SquaredRelu

    def open(self, x: Tensor, experts: Tensor, groups: Groups, kernels: Kernels) -> Kept:
        """Compute gate and up of rows (S, H)."""
        return Kept(*self.gate_up.forward(x, experts, groups, kernels), None)

    def close(self, kept: Kept, experts: Tensor, groups: Groups, kernels: Kernels) -> Tensor:
        """Return d (S, H) from gate and up."""
        h = self.gate.forward(kept.gate_up, kernels)
        d, kept.u_down = self.down.forward(h, experts, groups, kernels)
        return d

    def backward(
        self,
        dy: Tensor,
        x: Tensor,
        kept: Kept,
        weights: Tensor | None,
        experts: Tensor,
        groups: Groups,
        kernels: Kernels,
    ) -> tuple[Tensor, Tensor | None]:
        """Return dX (S, H), and the gradient (S,) of `weights` (S, 1), with which d enters y; uses `kept` up."""
        down, dweights = self.down, None
        h = self.gate.forward(kept.gate_up, kernels)
        dh, g = down.gradient_x(dy, groups, kernels)
        if kept.u_down is None:
            kept.u_down = down.project(h, groups, kernels)
        down.add_gradients(dy, h, kept.u_down, g, groups, kernels, weights)
        if weights is not None:
            wide = torch.promote_types(dh.dtype, torch.float32)
            dweights = (dh.to(wide) * h).sum(-1)
            if down.bias is not None:
                dweights += (dy.to(wide) * down.bias.index_select(0, experts)).sum(-1)
            dh.mul_(weights)
        dgate_up = self.gate.backward(dh, kept.gate_up, kernels)
        dx, g = self.gate_up.gradient_x(dgate_up, groups, kernels)
        self.gate_up.add_gradients(dgate_up, x, kept.u_gate_up, g, groups, kernels)
        return dx, dweights


@dataclass(slots=True)
class SavedExperts(Saved):
    """See Saved."""

    large: ClassVar[tuple[str, ...]] = ("x",)
    routes: Routes
    x: Tensor | None = None
    """(T, H) the block's input."""
    routed: Kept | None = None
    shared: Kept | None = None


@dataclass(kw_only=True, slots=True)
class Experts:
    """See the file's docstring."""

    router: Router
    routed: GatedExperts
    shared: GatedExperts | None = None
    """Of one expert."""
    shared_gate: Tensor | None = None
    """(1, H)"""
    shared_gate_gradient: Tensor | None = None
    """(1, H) float32, added to; None: frozen."""

    def forward(self, x: Tensor, kernels: Kernels, level: int) -> tuple[Tensor, SavedExperts]:
        """Return y (T, H) of x (T, H), and what is kept at `level`, a place in KEEP_LEVELS; -1: routes alone."""
        saved = SavedExperts(self.router.forward(x), x if level >= 1 else None)
        routed, y = self.run_routed(x, saved.routes, kernels)
        if self.shared is not None:
            none, every = all_rows(x)
            shared = self.shared.open(x, none, every, kernels)
            branch = self.shared.close(shared, none, every, kernels)
            y += branch if self.shared_gate is None else branch * self._share(x)
        if level >= 3:
            saved.routed, saved.shared = routed, shared if self.shared is not None else None
        return y, saved

    def run_routed(self, x: Tensor, routes: Routes, kernels: Kernels) -> tuple[Kept, Tensor]:
        """Return what the routed experts keep of rows x (T, H), and their weighed sum (T, H)."""
        kept = self.routed.open(routes.spread(x), routes.experts, routes.groups, kernels)
        rows = self.routed.close(kept, routes.experts, routes.groups, kernels)
        return kept, routes.gather(rows, routes.weights)

    def recompute(self, saved: SavedExperts, x: Tensor, kernels: Kernels) -> None:
        """Fill `saved` for backward() from the block's input, along the routes that forward() took."""
        saved.x, routes = x, saved.routes
        if saved.routed is None:
            saved.routed = self.routed.open(routes.spread(x), routes.experts, routes.groups, kernels)
        if self.shared is not None and saved.shared is None:
            saved.shared = self.shared.open(x, *all_rows(x), kernels)

    def backward(
        self, dy: Tensor, saved: SavedExperts, kernels: Kernels, *, balance: Tensor | None = None
    ) -> Tensor:
        """Return dx (T, H); adds to every gradient that is trained; uses `saved` up. `balance`: see Router.backward."""
        x = saved.x
        self.recompute(saved, x, kernels)
        dx = self.backward_routed(dy, x, saved, kernels, balance=balance)
        if self.shared is not None:
            self._backward_shared(dy, x, saved.shared, dx, kernels)
        saved.x = saved.shared = None
        return dx

    def backward_routed(
        self, dy: Tensor, x: Tensor, saved: SavedExperts, kernels: Kernels, *, router_rows: Tensor | None = None,
        drouter: Tensor | None = None, balance: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return dx (T, H) of the routed experts' rows x, and of the router's where it reads the same.

        Where it reads `router_rows` (T, H), their gradient is added to `drouter`.
        """
        routes = saved.routes
        if saved.routed is None:
            saved.routed = self.routed.open(routes.spread(x), routes.experts, routes.groups, kernels)
        weights = routes.weights.reshape(-1, 1).index_select(0, routes.order)
        rows, dweights = self.routed.backward(
            routes.spread(dy), routes.spread(x), saved.routed, weights, routes.experts, routes.groups, kernels
        )
        saved.routed = None
        dx = routes.gather(rows)
        del rows
        dweights = dweights.index_select(0, routes.places).view(routes.chosen.shape)
        self.router.backward(
            dweights.to(routes.weights.dtype),
            x if router_rows is None else router_rows,
            routes,
            dx=dx if drouter is None else drouter,
            balance=balance,
        )
        return dx

    def _backward_shared(self, dy: Tensor, x: Tensor, kept: Kept, dx: Tensor, kernels: Kernels) -> None:
        share = None if self.shared_gate is None else self._share(x)
        part, dshare = self.shared.backward(dy, x, kept, share, *all_rows(x), kernels)
        dx += part
        if share is None:
            return
        slope = (dshare[:, None] * share * (1 - share)).to(x.dtype)
        dx += slope * self.shared_gate
        if self.shared_gate_gradient is not None:
            multiply_into(slope.T, x, self.shared_gate_gradient, add=True)

    def _share(self, x: Tensor) -> Tensor:
        """Return the shared expert's weight, (T, 1)."""
        return torch.sigmoid(torch.mm(x, self.shared_gate.T))


def all_rows(x: Tensor) -> tuple[Tensor, Groups]:
    """Return expert and group of T rows that all belong to one expert."""
    count = x.shape[0]
    experts = torch.zeros(count, dtype=torch.int64, device=x.device)
    return experts, Groups.of(experts, 1)
