"""The two values that every kernel file deals in: a verdict with its reason, and an op with its two twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Support:
    """Whether something can be used here, and why (one plain English sentence, also when it can)."""

    ok: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One operation with two implementations of the same signature."""

    name: str
    """The plain name by which a plan chooses it."""
    reference: Callable
    """Composed PyTorch: runs on every device and dtype, float64 included; the fallback."""
    triton: Callable
    """The fused kernel with a gradient of its own."""
    supports: Callable[..., Support]
    """`supports(device_type=, capability=, dtype=, width=)`: may `triton` be used on such tensors?"""
