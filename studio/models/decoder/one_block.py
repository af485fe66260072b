"""Reads the only block of a layer that has one beside its norm, where that is an MLP or experts (Nemotron-H)."""

from __future__ import annotations

from typing import Any

from torch import nn

from studio.models.decoder.experts_spec import find_mixture, find_shared, read_experts
from studio.models.decoder.layer_parts import (
    Unlike,
    find_child,
    find_linears,
    find_mlp_activation,
    refuse_strangers,
)
from studio.models.decoder.structure import MIXER, ONE_BLOCK


def is_one_block(layer: nn.Module) -> bool:
    """Return whether `layer` has a norm by the name that only such layers use."""
    return isinstance(getattr(layer, ONE_BLOCK["input_norm"], None), nn.Module)


def read_ungated(layer: nn.Module, hidden: int) -> dict[str, Any]:
    """Return LayerSpec's fields of an MLP or of experts for rows of H columns. Raises Unlike for another block."""
    block = find_child(layer, MIXER)
    refuse_strangers(layer, "layer")
    mixture = find_mixture([block])
    mlp = block if mixture is None else find_shared(mixture, [block])
    experts = None if mixture is None else read_experts(mixture, hidden)
    if isinstance(experts, str):
        raise Unlike(experts)
    if mlp is None:
        return {"experts": experts}
    refuse_strangers(mlp, "mlp")
    gate_up, (down,) = find_linears(layer, "gate_up"), find_linears(layer, "down")
    activation = find_mlp_activation(mlp, gate_up, down)
    return {"experts": experts, "gate_up": gate_up, "down": down, "activation": activation}
