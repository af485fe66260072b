"""What all layers need to know of the rows of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from studio_kernels.attention import Documents
from torch import Tensor

from studio.models.decoder.fused_lora_linear import Drops
from studio.models.decoder.shared_rows import SharedRows


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """What all layers need to know of a micro-batch's T rows."""

    positions: Tensor
    """(T,) int32"""
    documents: Documents
    tables: dict[str, tuple[Tensor, Tensor]]
    """Rotary tables (cos, sin), each (P, d_r) fp32, by LayerSpec.rotary."""
    drops: Drops
    mlp_rows: int = 0
    """Rows of one portion of the MLP; 0: all at once."""
    shared: SharedRows = field(default_factory=SharedRows)
    """What layers read beside the stream, of one pass at a time."""

    @property
    def kept(self) -> int:
        """Of how many rows layers keep what a backward pass needs: the first; 0: of all."""
        return 0 if self.documents.beside is None else self.documents.rows

    def keep_first(self) -> BatchLayout:
        """Return what a backward pass needs to know, of the rows of which something is kept."""
        if not self.kept:
            return self
        documents = replace(self.documents, beside=None)
        return replace(self, positions=self.positions[: self.kept], documents=documents)
