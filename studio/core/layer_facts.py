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


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockFacts:
    """So many layers that are one block with these linears, in a model of such layers (Nemotron-H)."""

    layers: int
    linears: Mapping[str, tuple[int, int]]
    """As ModelFacts has them, without experts and what chooses among them."""
    routed: bool
    """Whether the block has experts."""
