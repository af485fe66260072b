"""Several residual streams in the model's form, (n, D, S, H), and side by side as our rows hold them, (D, S, n H)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from studio.models.decoder.spec import LayerSpec


def lay_side_by_side(streams: Tensor) -> Tensor:
    """Return (D, S, n H) of (n, D, S, H); rows of a single stream as they are."""
    return streams.permute(1, 2, 0, 3).flatten(2) if streams.dim() == 4 else streams


class RowsLayer(nn.Module):
    """A layer's own module that takes and gives streams side by side."""

    def __init__(self, layer: nn.Module, streams: int) -> None:
        super().__init__()
        self.layer, self.streams = layer, streams

    def forward(self, x: Tensor, **given: Any) -> Tensor:
        """Return y (D, S, n H) of x."""
        apart = x.unflatten(2, (self.streams, -1)).permute(2, 0, 1, 3)
        return lay_side_by_side(self.layer(apart, **given))


def module_of_rows(spec: LayerSpec) -> nn.Module:
    """Return the module of a layer as it takes our rows."""
    return spec.module if spec.alt_up is None else RowsLayer(spec.module, spec.alt_up.streams)
