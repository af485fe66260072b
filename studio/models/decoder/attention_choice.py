"""Chooses what computes the attention of each kind of layer, by trying."""

from __future__ import annotations

import torch
from studio_kernels.attention import Attention, choose_attention

from studio.models.decoder.spec import LayerSpec


def choose_layer_attention(
    spec: LayerSpec,
    device: torch.device,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    flash: bool,
    known: dict[tuple, Attention],
) -> Attention | None:
    """Return the attention of a layer's kind; each kind is chosen once, by trying. `flash`: ours may be, too.

    None where the model's own module mixes.
    """
    if not spec.attends:
        return None
    kind = (spec.head_dim, spec.query_heads, spec.key_heads, spec.scale, spec.window, spec.softcap)
    kind = (*kind, spec.sinks is not None)
    if kind not in known:
        known[kind] = choose_attention(
            device=device,
            dtype=dtype,
            head_dim=spec.head_dim,
            query_heads=spec.query_heads,
            key_heads=spec.key_heads,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            capability=read_capability(device) if capability is None else capability,
            triton=flash,
            sinks=spec.sinks is not None,
        )
    return known[kind]


def read_capability(device: torch.device) -> tuple[int, int] | None:
    """Return a card's compute capability, None elsewhere."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None
