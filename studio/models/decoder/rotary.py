"""Rotary tables as the model's own module makes them, in fp32, kept for as long as they hold."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from studio.models.decoder.spec import NO_ROTARY

LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies hang on the longest position of a batch (transformers' names)."""


class RotaryTables:
    """cos and sin (P, d_r) fp32 of every kind of layer; `kinds` are the names under which layers ask for theirs."""

    def __init__(self, module: nn.Module, kinds: set[str]) -> None:
        self.module = module
        self.kinds = kinds
        self._by_kind = "layer_type" in inspect.signature(type(module).forward).parameters
        types = getattr(module, "rope_type", "default")
        self._exact = any(
            kind in LENGTH_DEPENDENT for kind in (types.values() if isinstance(types, dict) else [types])
        )
        self._length = 0
        self._tables: dict[str, tuple[Tensor, Tensor]] = {}

    def up_to(self, longest: int, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the tables for documents of at most `longest` tokens."""
        length = longest if self._exact else max(64, 1 << (longest - 1).bit_length())
        known = length == self._length if self._exact else longest <= self._length
        if not known:
            positions = torch.arange(length, device=device)[None]
            like = torch.empty((), dtype=torch.float32, device=device)
            self._tables = {kind: self._make(like, positions, kind) for kind in sorted(self.kinds)}
            self._length = length
        return self._tables

    @torch.no_grad()
    def _make(self, like: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        with torch.autocast(like.device.type, enabled=False):
            asked = min(self.kinds - {NO_ROTARY}) if kind == NO_ROTARY and self._by_kind else kind
            cos, sin = self.module(like, positions, asked) if self._by_kind else self.module(like, positions)
        if kind == NO_ROTARY:
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        return cos[0].float().contiguous(), sin[0].float().contiguous()
