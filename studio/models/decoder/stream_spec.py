"""Reads what a layer of several residual streams has beside attention and MLP (Gemma 3n), and its gate's cut."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from torch import nn

from studio.models.decoder.layer_parts import Unlike, count_features, find_linears, find_norm
from studio.models.decoder.structure import (
    LAUREL,
    LAUREL_GROUPS,
    LAUREL_NORM,
    STREAM_MAPS,
    STREAM_VECTORS,
    STREAMS,
    name_parts,
)


@dataclass(frozen=True, slots=True)
class AltUpParts:
    """What weighs the streams of a layer (blocks/alt_up.py)."""

    streams: int
    active: int
    """The stream that the layer computes."""
    router: nn.Parameter
    """(n, H)"""
    prediction: nn.Parameter
    """(n^2, n)"""
    correction: nn.Parameter
    """(n, n)"""
    input_scale: float
    scale: nn.Parameter | None
    """(H,) by which a token's own input is met; None: by nothing."""

    @property
    def sizes(self) -> tuple[Any, ...]:
        """What layers of one kind have in common."""
        return self.streams, self.active, self.input_scale, self.scale is None


@dataclass(frozen=True, slots=True)
class LaurelParts:
    """A narrow map beside attention (blocks/laurel.py)."""

    left: nn.Module
    right: nn.Module

    @property
    def groups(self) -> dict[str, tuple[nn.Module, ...]]:
        """As LayerSpec.groups has them."""
        return dict(zip(LAUREL_GROUPS, ((self.left,), (self.right,)), strict=True))


def read_streams(layer: nn.Module, hidden: int) -> dict[str, Any]:
    """Return LayerSpec's fields of a layer with several streams, {} for one of a single stream.

    Raises Unlike where it has others, or matrices that are not plain ones.
    """
    module, laurel = getattr(layer, STREAMS, None), getattr(layer, LAUREL, None)
    if module is None and laurel is None:
        return {}
    if (
        module is None
        or laurel is None
        or {name for name, _ in laurel.named_children()} != name_parts(LAUREL)
    ):
        raise Unlike(f"{STREAMS}, {LAUREL}")
    parameters = dict(module.named_parameters())
    names = [name.partition(".")[2] for name in STREAM_MAPS]
    plain = {f"{name}.weight" for name in names}
    vectors = {"router_norm.weight", STREAM_VECTORS[1].partition(".")[2]}
    if set(parameters) != plain | vectors or not all(p.is_floating_point() for p in parameters.values()):
        raise Unlike(STREAMS)
    router, prediction, correction = (parameters[f"{name}.weight"] for name in names)
    count = router.shape[0]
    if (router.shape[1], prediction.shape, correction.shape) != (hidden, (count**2, count), (count, count)):
        raise Unlike(STREAMS)
    scaled = bool(getattr(module.config, "altup_correct_scale", True))
    (left,), (right,) = (find_linears(layer, name) for name in LAUREL_GROUPS)
    if count_features(left)[1] != count_features(right)[0]:
        raise Unlike(LAUREL)
    return {
        "alt_up": AltUpParts(
            count, int(module.config.altup_active_idx), router, prediction, correction,
            float(module.router_input_scale), module.correct_output_scale if scaled else None,
        ),
        "router_norm": find_norm(module, STREAM_VECTORS[0].partition(".")[2]),
        "laurel": LaurelParts(left, right),
        "laurel_norm": find_norm(laurel, LAUREL_NORM.partition(".")[2]),
    }  # fmt: skip


def read_gate_cut(mlp: nn.Module | None) -> float | None:
    """Return the quantile below which an MLP lets nothing of its gate pass, None where all passes."""
    share = float(getattr(mlp, "activation_sparsity", 0.0) or 0.0)
    return NormalDist().inv_cdf(share) if 0.0 < share < 1.0 else None
