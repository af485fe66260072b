"""Finds the parts of a layer by their names, or says which of them is strange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from studio.models.decoder.blocks.gates import SQUARED, square_relu
from studio.models.decoder.structure import (
    EXPERTS,
    GROUPS,
    HEAD_NORM_FORMS,
    LAUREL,
    MIXER,
    MLPS,
    RESIDUAL_SCALES,
    ROUTERS,
    SHARED_MLPS,
    SINKS,
    STREAMS,
    VALUE_NORM,
    find_placement,
    name_parts,
)
from studio.models.gate_probe import find_gate
from studio.models.module_swaps import name_activation
from studio.models.norm_probe import Norm, PlainNorm, is_rms_norm, read_norm, read_plain_norm


class Unlike(Exception):
    """The structure is another one; carries the reason."""

    def __init__(self, part: str) -> None:
        self.part = part
        super().__init__(part)


ACTIVATIONS = ("act_fn", "activation_fn", "activation")
"""What MLPs call the function of their gate."""
PARTS = {
    "layer": {
        "self_attn",
        *MLPS,
        EXPERTS,
        *ROUTERS,
        "resid_attn_dropout",
        "resid_mlp_dropout",
        *ACTIVATIONS,
        STREAMS,
        LAUREL,
        MIXER,
    }
    | name_parts(),
    "attention": name_parts("self_attn") | {VALUE_NORM},
    "mlp": {name for owner in (*MLPS, *SHARED_MLPS) for name in name_parts(owner)} | {*ACTIVATIONS},
}
"""Every child that a layer of the known form may have: a further one would be left out of our arithmetic."""


def refuse_strangers(module: nn.Module, kind: str) -> None:
    """Raise Unlike for a child that PARTS[kind] lacks, or a parameter of the module's own."""
    strangers = {name for name, _ in module.named_children()} - PARTS[kind]
    own = [name for name, _ in module.named_parameters(recurse=False) if name != SINKS or kind != "attention"]
    if strangers or own:
        raise Unlike(", ".join(sorted([*strangers, *own])))


def refuse_dropout(layer: nn.Module) -> None:
    """Dropout of the model's own (not of an adapter) is left to the stock forward."""
    for name, module in layer.named_modules():
        if isinstance(module, nn.Dropout) and module.p and ".lora_dropout." not in f".{name}.":
            raise Unlike(name)


def find_child(module: nn.Module, name: str) -> nn.Module:
    child = getattr(module, name, None)
    if not isinstance(child, nn.Module):
        raise Unlike(name)
    return child


def find_norm(module: nn.Module, name: str) -> Norm:
    child = find_child(module, name)
    norm = read_norm(child) if is_rms_norm(child) else None
    if not isinstance(norm, Norm):
        raise Unlike(name)
    return norm


def find_norms(layer: nn.Module) -> dict[str, Norm]:
    """Return the norms of a layer's stream and branches by their place."""
    children = {name for name, _ in layer.named_children()}
    places = find_placement(children)
    if not places:
        raise Unlike(", ".join(sorted(children & name_parts())) or "input_layernorm")
    return {place: find_norm(layer, name) for place, name in places.items()}


def read_residual_scale(layer: nn.Module) -> float:
    """Return by what a layer multiplies its branches before they join the stream, 1 where by nothing."""
    found = [vars(layer)[name] for name in RESIDUAL_SCALES if name in vars(layer)]
    return float(found[0]) if found else 1.0


def find_head_norms(
    layer: nn.Module, widths: tuple[int, int], head_dim: int
) -> tuple[Norm, Norm] | tuple[None, None]:
    """Return the norms of query and key, of each head or of all; `widths`: of all query and all key heads."""
    for names in HEAD_NORM_FORMS:
        found = [find_part(layer, name) for name in names]
        if found == [None, None]:
            continue
        owner = [name.partition(".")[2] for name in names]
        query, key = (find_norm(layer.self_attn, name) for name in owner)
        sizes = query.weight.numel(), key.weight.numel()
        if sizes not in ((head_dim, head_dim), widths):
            raise Unlike(owner[0])
        return query, key
    return None, None


def find_value_norm(attention: nn.Module, head_dim: int) -> PlainNorm | None:
    """Return the norm of each value head, None where there is none."""
    module = getattr(attention, VALUE_NORM, None)
    if module is None:
        return None
    norm = read_plain_norm(module, head_dim, next(attention.parameters()).device)
    if norm is None:
        raise Unlike(VALUE_NORM)
    return norm


def find_linears(layer: nn.Module, group: str) -> tuple[nn.Module, ...]:
    """Return the linears of a group, in the first of its forms that the layer has."""
    for names in GROUPS[group]:
        found = [find_part(layer, name) for name in names]
        if all(isinstance(module, nn.Module) for module in found):
            return tuple(found)
    raise Unlike(GROUPS[group][0][0])


def find_part(layer: nn.Module, name: str) -> Any:
    """Return what `layer` has under a dotted name, None where that is nothing."""
    for part in name.split("."):
        layer = getattr(layer, part, None)
    return layer


def count_features(linear: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer, inside an adapter or not."""
    return int(linear.in_features), int(linear.out_features)


def find_activation(mlp: nn.Module, gate_up: Sequence[nn.Module], down: nn.Module) -> str:
    function = next((getattr(mlp, name) for name in ACTIVATIONS if hasattr(mlp, name)), None)
    kind = name_activation(function, torch.device("cpu")) if callable(function) else None
    kind = find_gate(mlp, gate_up, down) if function is None else kind
    if kind is None:
        raise Unlike("act_fn")
    return kind


def find_mlp_activation(mlp: nn.Module, gate_up: Sequence[nn.Module], down: nn.Module) -> str:
    """Return the kind of an MLP's gate (glu.KINDS), or SQUARED where it has none."""
    if sum(count_features(linear)[1] for linear in gate_up) != count_features(down)[0]:
        return find_activation(mlp, gate_up, down)
    function = next((getattr(mlp, name) for name in ACTIVATIONS if hasattr(mlp, name)), None)
    values = torch.linspace(-8, 8, 65)
    if not callable(function) or not torch.allclose(function(values), square_relu(values)):
        raise Unlike("act_fn")
    return SQUARED


def name_parameters(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters()}


def scalars_of(module: nn.Module) -> tuple[tuple[str, str, Any], ...]:
    """Return the plain values that `module` and its parts hold, but for their layer's number: of layers that differ in
    one of them, either is another kind.
    """
    return tuple(
        (name, key, value)
        for name, part in module.named_modules()
        for key, value in sorted(vars(part).items())
        if isinstance(value, (bool, int, float, str)) and key not in ("layer_idx", "training")
    )
