"""What is known of some of a model's layers where these differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionFacts:
    """So many layers whose attention and MLP have these shapes, in a model whose layers differ in them (Gemma 4)."""

    layers: int
    head_dim: int
    """As the norms of its heads say."""
    linears: Mapping[str, tuple[int, int]]
    """As ModelFacts has them."""
