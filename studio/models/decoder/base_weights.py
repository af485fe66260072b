"""Whether the experts of a model are of a kind that the decoder multiplies by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from studio.core.i18n import Text, text
from studio.models.decoder.fused_lora_linear import LinearPart
from studio.models.decoder.spec import DecoderSpec


def refuse_experts(
    spec: DecoderSpec, parts: Sequence[Mapping[str, Sequence[LinearPart]]], dtype: torch.dtype
) -> Text | None:
    """Return why the experts of a layer cannot be computed here, or None."""
    for layer, groups in zip(spec.layers, parts, strict=True):
        if layer.experts is None:
            continue
        for part in (layer.experts.gate_up, layer.experts.down):
            if part.weight.dtype != dtype and not part.packed:
                return text("model.decoder.weights", kind=part.name, dtype=str(part.weight.dtype))
        if any(part.dropout for name in ("gate_up", "down") for part in groups.get(name, ())):
            return text("model.decoder.unlike", part="lora_dropout")
    return None
