"""Experts as a block of a layer: the norm before them, the experts, and how they join the residual stream.

    n = norm(x)        b = experts(n)        y = x + b

Where the branch has a norm, y = x + norm(b), where it is multiplied, y = x + m b. T rows, H hidden width. n is always
computed again; which experts a token passes never is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.grouped_matmul import Groups
from studio_kernels.nf4 import Nf4
from studio_kernels.nf4 import reference_forward as decode
from torch import Tensor

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.block import Saved, StreamRows
from studio.models.decoder.blocks.experts import Experts, GatedExperts, GroupedLinear, SavedExperts
from studio.models.decoder.blocks.gates import SQUARED, PlainGate, SquaredRelu
from studio.models.decoder.blocks.residual import join, join_backward, joins_apart, leave_backward, normalise
from studio.models.decoder.experts_spec import StackPart
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.fused_lora_linear import Drops, LinearGroup
from studio.models.decoder.spec import LayerSpec
from studio.models.expert_adapters import split_a, split_b
from studio.models.nf4_experts import Nf4Stack

STILL = Drops(None)
"""A shared expert's adapters drop nothing: take_over() refuses others."""


@dataclass(slots=True)
class SavedRoutedMLP(Saved):
    """See Saved."""

    large: ClassVar[tuple[str, ...]] = ("x", "down", "gate_up", "shared_gate_up")
    inner: SavedExperts
    x: Tensor | None = None
    """(T, H) the block's input."""
    down: Tensor | None = None
    """(T, H) the experts' result, where a norm follows it: always kept."""

    @property
    def gate_up(self) -> Tensor | None:
        """(S, 2 I) of the routed experts."""
        return None if self.inner.routed is None else self.inner.routed.gate_up

    @gate_up.setter
    def gate_up(self, value: Tensor | None) -> None:
        self.inner.routed.gate_up = value

    @property
    def shared_gate_up(self) -> Tensor | None:
        """(T, 2 I') of the shared one."""
        return None if self.inner.shared is None else self.inner.shared.gate_up

    @shared_gate_up.setter
    def shared_gate_up(self, value: Tensor | None) -> None:
        self.inner.shared.gate_up = value


@dataclass(frozen=True, slots=True)
class StackAdapter:
    """A trained adapter of every expert, and the linear that multiplies by its rounded copy."""

    linear: GroupedLinear
    a: Tensor
    """(E, R, in) of the store, float32."""
    b: Tensor
    """(E, out, R), likewise, of any strides."""

    def refresh(self) -> None:
        """Round what the optimizer has changed."""
        self.linear.a.copy_(self.a)
        self.linear.b.copy_(self.b)


class RoutedMLP:
    """See the file's docstring."""

    def __init__(
        self,
        spec: LayerSpec,
        experts: Experts,
        rows: StreamRows,
        adapters: Sequence[StackAdapter],
        shared: Sequence[LinearGroup],
        norm_gradients: dict[str, Tensor | None],
    ) -> None:
        """`shared`: the groups of linears of the expert that all tokens pass; `norm_gradients`: as in SelfAttention."""
        self.spec = spec
        self.experts = experts
        self.outer = rows
        self.adapters = tuple(adapters)
        self.groups = tuple(shared)
        self.norm_gradients = norm_gradients

    def refresh(self) -> None:
        """Round changed adapters of the routed experts; those of `groups` are their own matter."""
        for adapter in self.adapters:
            adapter.refresh()

    def drop_adapters(self) -> None:
        """Let the adapters of the routed experts add nothing until they are rounded again."""
        for adapter in self.adapters:
            adapter.linear.b.zero_()

    @property
    def expert_weights(self) -> int:
        """Weights of one of the routed experts."""
        return sum(math.prod(part.shape[1:]) for part in (self.spec.experts.gate_up, self.spec.experts.down))

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, level: int
    ) -> tuple[Tensor, SavedRoutedMLP]:
        """See LayerBlock."""
        norm, scale = self.spec.output_norm, self.spec.residual_scale
        normal, _ = normalise(self.spec.mlp_norm, x, kernels)
        branch, inner = self.experts.forward(normal, kernels, level)
        del normal
        inner.x = None
        saved = SavedRoutedMLP(inner, x if level >= 1 else None)
        if norm is not None and level >= 0:
            saved.down = branch
        if joins_apart(norm, scale):
            return join(norm, scale, branch, x, kernels), saved
        return branch.add_(x), saved

    def recompute(
        self, saved: SavedRoutedMLP, y: Tensor | None, rows: BatchLayout, kernels: Kernels
    ) -> Tensor:
        """See LayerBlock; gate and up are computed again by backward()."""
        return self.forward(saved.x, rows, kernels, -1)[0] if y is None else y

    def backward(
        self,
        dy: Tensor,
        saved: SavedRoutedMLP,
        rows: BatchLayout,
        kernels: Kernels,
        below: LinearGroup | None,
    ) -> Tensor:
        """See LayerBlock."""
        spec, hidden = self.spec, saved.x.shape[1]
        dbranch = dy
        if joins_apart(spec.output_norm, spec.residual_scale):
            gradient = self.norm_gradients.get("output_norm")
            dbranch = join_backward(
                spec.output_norm, spec.residual_scale, dy, saved.down, self.outer, gradient, kernels
            )
        saved.down = None
        normal, r = normalise(self.spec.mlp_norm, saved.x, kernels)
        saved.inner.x = normal
        dnormal = self.experts.backward(dbranch, saved.inner, kernels)
        del dbranch, normal
        dx = below.widen_gradient(dy.shape[0])
        gradient = self.norm_gradients.get("mlp_norm")
        leave_backward(spec.mlp_norm, dnormal, saved.x, r, dy, gradient, kernels, dx[:, :hidden])
        saved.x = None
        return dx


class WholeLinear:
    """A group of linears that all rows pass, as the linear of an only expert (see GroupedLinear)."""

    bias = None

    def __init__(self, group: LinearGroup) -> None:
        self.group = group

    def project(self, x: Tensor, groups: Groups, kernels: Kernels) -> Tensor:
        """Return U (T, tail)."""
        u = torch.empty(x.shape[0], self.group.tail, dtype=x.dtype, device=x.device)
        return self.group.project(x, u, kernels, STILL)

    def forward(self, x: Tensor, experts: Tensor, groups: Groups, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Return Y (T, out) and U (T, tail)."""
        u = self.project(x, groups, kernels)
        return self.group.forward_apart(x, u, kernels), u

    def gradient_x(self, dy: Tensor, groups: Groups, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Return dX (T, in) and G (T, tail)."""
        wide = dy
        if self.group.tail:
            wide = self.group.widen_gradient(dy.shape[0])
            wide[:, : self.group.outputs] = dy
            self.group.gradient_u(wide, kernels)
        return self.group.gradient_x(wide, kernels, STILL), wide[:, self.group.outputs :]

    def add_gradients(
        self,
        dy: Tensor,
        x: Tensor,
        u: Tensor,
        g: Tensor,
        groups: Groups,
        kernels: Kernels,
        weights: Tensor | None = None,
    ) -> None:
        """Add dA, dB and magnitudes' gradients of dY (T, out), times `weights` (T, 1) where dY comes without them."""
        group = self.group
        if not group.tail:
            return
        if weights is not None:
            u, g = (u * weights).to(u.dtype), (g * weights).to(g.dtype)
        group.gradient_b(dy, u, kernels)
        kernels.lora.gradient_a(g[:, : group.rank], x, out=group.da)
        if group.magnitudes is not None:
            group.gradient_w(dy if weights is None else (dy * weights).to(dy.dtype), x, kernels)


def build_routed_mlp(
    kind: type[RoutedMLP],
    spec: LayerSpec,
    shared: Sequence[LinearGroup],
    store: FlatStore,
    rows: StreamRows,
    norm_gradients: dict[str, Tensor | None],
) -> RoutedMLP:
    """Return the block, a `kind` of RoutedMLP, of a layer with experts.

    `shared`: groups gate_up and down of the one that all tokens pass.
    """
    read, adapters = spec.experts, []
    routed = GatedExperts(
        gate_up=_stack(read.gate_up, store, rows, adapters),
        down=_stack(read.down, store, rows, adapters),
        gate=read.gate,
    )
    experts = Experts(router=read.router, routed=routed)
    if shared:
        gate_up, down = map(WholeLinear, shared)
        plain = spec.activation == SQUARED
        gate = SquaredRelu() if plain else PlainGate(spec.activation)
        experts.shared = GatedExperts(gate_up=gate_up, down=down, gate=gate)
    if read.shared_gate is not None:
        experts.shared_gate = read.shared_gate.weight.detach()
    return kind(spec, experts, rows, adapters, shared, norm_gradients)


def _stack(
    part: StackPart, store: FlatStore, rows: StreamRows, adapters: list[StackAdapter]
) -> GroupedLinear:
    """Return the GroupedLinear of `part`; its adapter, where it has one, joins `adapters`."""
    weight, bias = part.weight, part.bias
    weight = weight.as_nf4() if isinstance(weight, Nf4Stack) else weight.detach()
    linear = GroupedLinear(
        weight=weight, flipped=part.flipped, bias=None if bias is None else bias.detach().to(rows.dtype)
    )
    if part.rank:
        a, da = (
            None if one is None else split_a(one, part.shape[0])
            for one in (part.a.detach(), store.find_gradient(part.a))
        )
        b, db = (
            None if one is None else split_b(one, part.shape[0])
            for one in (part.b.detach(), store.find_gradient(part.b))
        )
        linear.a, linear.b = (torch.empty(one.shape, dtype=rows.dtype, device=rows.device) for one in (a, b))
        linear.da, linear.db, linear.scale = da, db, part.scale
        adapters.append(StackAdapter(linear, a, b))
    return linear


def widen_routed(block: RoutedMLP, shared: Sequence[LinearGroup]) -> RoutedMLP:
    """Return `block` in float32, from the numbers that it multiplies by; gradients go where they went.

    `shared`: the groups of the expert that all tokens pass, in float32.
    """
    rows, adapters = replace(block.outer, dtype=torch.float32), []
    known = {id(adapter.linear): adapter for adapter in block.adapters}

    def widen(linear: GroupedLinear) -> GroupedLinear:
        weight = linear.weight
        if isinstance(weight, Nf4):
            opened = torch.empty(weight.shape, dtype=block.outer.dtype, device=rows.device)
            weight = decode(weight, opened).unflatten(0, (block.experts.router.weight.shape[0], -1))
        twin = replace(
            linear, weight=weight.float(), bias=None if linear.bias is None else linear.bias.float()
        )
        if linear.a is not None:
            twin.a, twin.b = (
                torch.empty_like(linear.a, dtype=rows.dtype),
                torch.empty_like(linear.b, dtype=rows.dtype),
            )
            adapters.append(replace(known[id(linear)], linear=twin))
        return twin

    experts, router = block.experts, block.experts.router
    twin = replace(
        experts,
        router=replace(
            router,
            weight=router.weight.float(),
            bias=None if router.bias is None else router.bias.float(),
            expert_scale=None if router.expert_scale is None else router.expert_scale.float(),
            entry=router.entry and replace(router.entry, scale=router.entry.scale.float()),
        ),
        routed=replace(
            experts.routed, gate_up=widen(experts.routed.gate_up), down=widen(experts.routed.down)
        ),
    )
    if experts.shared is not None:
        gate_up, down = map(WholeLinear, shared)
        twin.shared = replace(experts.shared, gate_up=gate_up, down=down)
    if experts.shared_gate is not None:
        twin.shared_gate = experts.shared_gate.float()
    return type(block)(block.spec, twin, rows, adapters, shared, block.norm_gradients)
