"""Puts the linears of a layer that read the same rows together, over the weights that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.flat_weights import WholeStore
from studio.models.decoder.frozen_weights import (
    FrozenWeights,
    OpenedWeights,
    ResidentWeights,
    Scratch,
    TrainedWeights,
)
from studio.models.decoder.fused_lora_linear import LinearGroup, LinearPart
from studio.models.decoder.structure import GROUPS, round_tail


def build_groups(
    parts: Mapping[str, Sequence[LinearPart]],
    store: FlatStore,
    scratch: Scratch,
    dtype: torch.dtype,
    number: int,
) -> dict[str, LinearGroup]:
    """Return the groups of the linears `parts` of layer `number`, by name."""
    groups = {}
    for place, (name, group) in enumerate(parts.items()):
        rank = sum(part.rank for part in group)
        if isinstance(store, WholeStore):
            weights: FrozenWeights = TrainedWeights([part.base for part in group], store)
        else:
            weights = _weights(group, round_tail(rank), dtype, scratch)
        groups[name] = LinearGroup(group, weights, store, stream=number * len(GROUPS) + place)
    return groups


def _weights(group: Sequence[LinearPart], tail: int, dtype: torch.dtype, scratch: Scratch) -> FrozenWeights:
    linears = [part.base for part in group]
    rescaled = any(part.magnitude is not None for part in group)
    packed = any(getattr(linear.weight, "quant_state", None) is not None for linear in linears)
    if not packed and not rescaled:
        return ResidentWeights(linears, tail)
    return OpenedWeights(linears, tail, dtype, scratch)
