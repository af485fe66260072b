"""The kinds of layers that a model has, from its facts: alike, with experts, of several shapes, or one block each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from studio_kernels.op import DECODED_BYTES

from studio.core.facts import ModelFacts
from studio.core.recipe import AdapterSpec
from studio.models.config_shapes import EXPERT, ROUTER
from studio.models.decoder.structure import (
    SHARED_GATES,
    SHARED_MLPS,
    STREAM_MAPS,
    find_placement,
    is_target,
    share_rank,
    split_mixers,
)

GATED = 3
"""Matrices of an expert that has a gate."""
ROUTE_BYTES = 8 + 4 + 3 * 8
"""What is kept of one expert of a token: its number and weight, and three orders of the rows."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """So many layers with these linears, name -> (outputs, inputs), experts and what chooses them left out."""

    count: int
    linears: Mapping[str, tuple[int, int]]
    routed: bool = False
    head_dim: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Routed:
    """The experts of each of `layers` layers; E experts of I columns for rows of H, k of which a token passes."""

    layers: int
    experts: int
    chosen: int
    width: int
    hidden: int
    rank: int
    """Of each expert's adapters; 0: none."""
    matrices: int = 3
    """Gate, up and down of an expert; 2 without a gate."""

    @property
    def opened(self) -> int:
        """Columns of an expert's gate and up."""
        return (self.matrices - 1) * self.width

    @property
    def weights(self) -> int:
        """Of one expert."""
        return self.matrices * self.hidden * self.width

    @property
    def adapter_parameters(self) -> int:
        """Of all layers."""
        each = self.rank * (self.hidden + self.opened + self.width + self.hidden)
        return self.layers * self.experts * each

    def kept_bytes(self, element_bytes: int) -> int:
        """Return what is always kept of a token's routes."""
        return element_bytes * self.experts + self.chosen * ROUTE_BYTES

    def opened_bytes(self, element_bytes: int) -> int:
        """Return what gate and up of a token's experts take."""
        return element_bytes * self.chosen * self.opened

    def tail_bytes(self, element_bytes: int) -> int:
        """Return what the adapters' narrow parts take beside them."""
        return element_bytes * self.chosen * 2 * self.rank

    def decoded_bytes(self, element_bytes: int) -> int:
        """Return the room in which 4-bit experts are decoded: all gates and ups of a layer, or as many as it holds."""
        return min(DECODED_BYTES, element_bytes * self.experts * self.opened * self.hidden)

    def backward_bytes(self, element_bytes: int) -> int:
        """Return what the backward pass of a token needs beside gate and up (blocks/experts.py)."""
        rows, product = element_bytes * self.hidden, element_bytes * self.width
        # Spread gradient and input, h and its gradient; then either their product in fp32, or the gradient of the rows.
        return self.chosen * (
            2 * rows + 2 * product + max(8 * self.width, rows) + element_bytes * 4 * self.rank
        )

    def forward_bytes(self, element_bytes: int) -> int:
        """Return what a token's forward pass needs beside gate and up: the rows, sorted and back in their places."""
        return element_bytes * self.chosen * (2 * self.hidden + 2 * self.rank)


def list_kinds(model: ModelFacts) -> tuple[LayerKind, ...]:
    """Return the kinds of a model's layers, the one with experts first."""
    if model.blocks:
        kinds = (LayerKind(one.layers, one.linears, one.routed, model.head_dim) for one in model.blocks)
        return tuple(sorted(kinds, key=lambda kind: not kind.routed))
    kinds = _list_mlps(model)
    if len(kinds) != 1 or sum(one.layers for one in model.attentions) != model.layers:
        return kinds
    (kind,) = kinds
    rest = {name: shape for name, shape in kind.linears.items() if not name.startswith("self_attn.")}
    return tuple(
        replace(kind, count=one.layers, linears=rest | dict(one.linears), head_dim=one.head_dim)
        for one in model.attentions
    )


def _list_mlps(model: ModelFacts) -> tuple[LayerKind, ...]:
    """Return the kinds of layers that differ in their MLP."""
    if not model.expert_parameters:
        linears = {name: shape for name, shape in model.linears.items() if name not in STREAM_MAPS}
        return (LayerKind(model.layers, linears, head_dim=model.head_dim),)
    plain = {
        name: shape
        for name, shape in model.linears.items()
        if not (EXPERT.search(name) or ROUTER.search(name) or name.rpartition(".")[2] in SHARED_GATES)
    }
    beside = stand_beside(model)  # then the MLP is no other kind of layer's
    routed = {n: shape for n, shape in plain.items() if beside or n.rpartition(".")[0] != "mlp"}
    dense = {name: shape for name, shape in plain.items() if name.rpartition(".")[0] not in SHARED_MLPS}
    layers = model.experts[0]
    kinds = (
        LayerKind(layers, routed, True, model.head_dim),
        LayerKind(model.layers - layers, dense, head_dim=model.head_dim),
    )
    return tuple(kind for kind in kinds if kind.count)


def stand_beside(model: ModelFacts) -> bool:
    """Return whether a layer's experts stand beside its MLP (Gemma 4), and not in its place."""
    return "routed_norm" in find_placement({name for name in model.norms if "." not in name})


def count_outside(model: ModelFacts) -> int:
    """Return the linear parameters of all layers that list_kinds() leaves out: gates of shared experts, what weighs
    several residual streams.
    """
    gates = (shape for name, shape in model.linears.items() if name.rpartition(".")[2] in SHARED_GATES)
    maps = (shape for name, shape in model.linears.items() if name in STREAM_MAPS)
    return sum(model.experts[0] * outputs * inputs for outputs, inputs in gates) + sum(
        model.layers * outputs * inputs for outputs, inputs in maps
    )


def count_streams(model: ModelFacts) -> int:
    """Return how many residual streams a model has: what weighs them gives as many numbers a token."""
    return model.linears.get(STREAM_MAPS[0], (1, 0))[0]


def read_routed(model: ModelFacts, adapter: AdapterSpec) -> Routed | None:
    """Return a model's experts, None where it has none or where their shapes do not add up."""
    layers, experts, chosen = model.experts
    if not (model.expert_parameters and layers and experts and chosen and model.hidden_size):
        return None
    # peft cannot do either of these with stacks, and those without a gate get none (models/adapter_targets.py).
    reached = adapter.method == "lora" and adapter.target_modules.strip() == "all-linear"
    reached = reached and not adapter.dropout and not adapter.dora and model.expert_matrices == GATED
    routed = Routed(
        layers=layers,
        experts=experts,
        chosen=chosen,
        width=model.expert_parameters // (layers * experts * model.expert_matrices * model.hidden_size),
        hidden=model.hidden_size,
        rank=share_rank(adapter.rank, chosen) if reached else 0,
        matrices=model.expert_matrices,
    )
    return routed if routed.layers * routed.experts * routed.weights == model.expert_parameters else None


def count_adapters(model: ModelFacts, spec: AdapterSpec) -> int:
    """Return the parameters of the adapters on linears and experts, DoRA's lengths of outputs among them."""
    routed = read_routed(model, spec)
    linear = 0
    for kind in list_kinds(model):
        shapes = [shape for name, shape in kind.linears.items() if is_target(name, spec.target_modules)]
        lengths = sum(outputs for outputs, _ in shapes) if spec.dora else 0
        linear += kind.count * (spec.rank * sum(map(sum, shapes)) + lengths)
    return linear + (routed.adapter_parameters if routed else 0)


def add_mlp(linears: Mapping[str, tuple[int, int]], hidden: int) -> Mapping[str, tuple[int, int]]:
    """Return `linears` with an MLP of no width where they have none, as beside experts of which none is shared."""
    if split_mixers(linears)[0]:
        return linears
    return dict(linears) | {"mlp.gate_up_proj": (0, hidden), "mlp.down_proj": (hidden, 0)}


def no_mixer(hidden: int) -> dict[str, tuple[int, int]]:
    """Return linears of no width in the place of a mixer's."""
    return {"self_attn.qkv_proj": (0, hidden), "self_attn.o_proj": (hidden, 0)}
