"""Rotary tables as the model's own module makes them, in fp32, kept for as long as they hold."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

NO_ROTARY = "none"
"""The kind of layers that leave query and key as they are (NoPE): every fourth one of SmolLM3."""
INVERSE = "inverse of "
"""Before the name of a kind: the tables that turn back what that kind's have turned."""
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies hang on the longest position of a batch (transformers' names)."""


class RotaryTables:
    """cos and sin (P, d_r) fp32 of every kind of layer; `kinds` are the names under which layers ask for theirs."""

    def __init__(self, module: nn.Module | None, kinds: set[str]) -> None:
        self.module = module
        self.kinds = kinds
        types = getattr(module, "rope_type", "default")
        self.length_dependent = any(
            kind in LENGTH_DEPENDENT for kind in (types.values() if isinstance(types, dict) else [types])
        )
        """Whether angles hang on the longest position of a batch."""
        self._length = 0
        self._tables: dict[str, tuple[Tensor, Tensor]] = {}

    def up_to(self, longest: int, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the tables for documents of at most `longest` tokens."""
        length = longest if self.length_dependent else max(64, 1 << (longest - 1).bit_length())
        known = length == self._length if self.length_dependent else longest <= self._length
        if not known:
            positions = torch.arange(length, device=device)[None]
            like = torch.empty((), dtype=torch.float32, device=device)
            self._tables = {kind: self._make(like, positions, kind) for kind in sorted(self.kinds)}
            self._length = length
        return self._tables

    def hangs_on_length(self, longest: int, device: torch.device) -> bool:
        """Return whether short documents have other angles than they have beside one of `longest` tokens."""
        if not self.length_dependent:
            return False
        brief, long = self.up_to(2, device), self.up_to(max(2, longest), device)
        return any(
            not torch.equal(one, other[:2])
            for kind, both in brief.items()
            for one, other in zip(both, long[kind], strict=True)
        )

    @torch.no_grad()
    def _make(self, like: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        if kind.startswith(INVERSE):
            return invert(*self._make(like, positions, kind.removeprefix(INVERSE)))
        asked = kind
        if kind == NO_ROTARY:
            own = (one for one in self.kinds if one != NO_ROTARY and not one.startswith(INVERSE))
            asked = min(own, default="")
        with torch.autocast(like.device.type, enabled=False):
            cos, sin = ask_tables(self.module, like, positions, asked)
        if kind == NO_ROTARY:
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        return to_halves(cos[0].float()).contiguous(), to_halves(sin[0].float()).contiguous()


def invert(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tables that turn back what these turn: the other way, and without their factor (YaRN)."""
    squares = cos.square() + sin.square()
    return cos / squares, -sin / squares


def ask_tables(module: nn.Module, like: Tensor, positions: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return cos and sin (1, P, d_r) as the rotary `module` makes them for layers of `kind`, in the dtype of `like`."""
    return as_tables(ask_module(module, like, positions, kind))


def ask_module(
    module: nn.Module, like: Tensor, positions: Tensor, kind: str
) -> Tensor | tuple[Tensor, Tensor]:
    """Return what the rotary `module` gives a layer of `kind`."""
    if "layer_type" in inspect.signature(type(module).forward).parameters:
        return module(like, positions, kind)
    return module(like, positions)


def as_tables(given: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin of what a rotary module gives: these, or one complex tensor of both (DeepSeek V2)."""
    return (given.real, given.imag) if isinstance(given, Tensor) else given


def to_halves(table: Tensor) -> Tensor:
    """Return `table` (..., d_r) with each angle in both halves.

    Also where a module gives it to neighbours (Cohere), or once, (..., d_r / 2) (gpt-oss).
    """
    half = table.shape[-1] // 2
    if half < 2 or torch.equal(table[..., :half], table[..., half:]):
        return table
    first, second = table[..., ::2], table[..., 1::2]
    return torch.cat((first, first), -1) if torch.equal(first, second) else torch.cat((table, table), -1)
