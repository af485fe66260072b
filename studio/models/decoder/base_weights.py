"""Whether the frozen weights of a model are of a kind that the decoder multiplies by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from studio.core.i18n import Text, text
from studio.models.decoder.fused_lora_linear import LinearPart
from studio.models.decoder.spec import DecoderSpec


def refuse_base(parts: Sequence[LinearPart], dtype: torch.dtype) -> Text | None:
    """Return why a base layer cannot be computed here, or None."""
    for part in parts:
        state = getattr(part.base.weight, "quant_state", None)
        if state is None and (type(part.base) is not nn.Linear or part.base.weight.dtype != dtype):
            return text(
                "model.decoder.weights", kind=type(part.base).__name__, dtype=str(part.base.weight.dtype)
            )
        if state is not None and (state.quant_type != "nf4" or state.blocksize != 64):
            return text("model.decoder.weights", kind=state.quant_type, dtype=str(state.blocksize))
    return None


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
