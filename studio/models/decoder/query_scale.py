"""How queries grow with their position, as a config says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueryScale:
    """Queries grow with their position p (Ministral 3): s(p) = 1 + beta log(1 + floor(p / period))."""

    beta: float
    period: int


def read_query_scale(config: Any) -> QueryScale | None:
    """Return how queries grow with their position, or None."""
    rope = getattr(config, "rope_parameters", None) or {}
    beta, period = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
    return QueryScale(float(beta), int(period)) if beta and period else None
