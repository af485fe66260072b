"""Finds by trying how an attention module turns its keys: not at all, by halves or neighbours, before norms or after.

The module gets a stand-in for its cache and hands its keys over to it, as attention would read them. What its linears
gave is turned in every way that the decoder knows; the right one is equal but for rounding, the others are off by 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from studio_kernels import rope
from studio_kernels.rms_norm import compose
from torch import Tensor, nn
from torch.func import functional_call

from studio.models.adapt import evaluation_mode
from studio.models.decoder.rotary import as_tables, ask_module, to_halves
from studio.models.norm_probe import TOLERANCE, Norm, relative_error

POSITIONS = (1, 2, 5, 11)


@dataclass(frozen=True, slots=True)
class Turning:
    """What becomes of a key head on its way to attention."""

    rotated: bool = True
    interleaved: bool = False
    """Neighbours are turned, and not the halves of a head."""
    norm_last: bool = False
    """Its norm comes after the rotation."""


class _Handed(Exception):
    """Carries the keys out of the module's forward, and what comes with them."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        super().__init__()


class _Cache:
    def update(self, keys: Tensor, values: Tensor, *rest: Any, **options: Any) -> None:
        raise _Handed(keys, values)


@torch.no_grad()
def find_turning(
    attention: nn.Module,
    rotary: nn.Module,
    kind: str,
    qkv: tuple[nn.Module, ...],
    norm: Norm | None,
    sizes: tuple[int, int, int],
) -> Turning | None:
    """Return how `attention` turns the keys that the last but one of `qkv`, or all together, give; None: unlike all.

    `sizes`: query heads, key heads, width of a head; of latent attention of that part of a key which all heads share,
    the last columns that `qkv` gives. `kind`: by which the rotary module knows the layer. The random state is left as
    found.
    """
    query_heads, key_heads, head_dim = sizes
    given: list[Tensor] = []
    weight = None if norm is None else _draw(norm)
    hooks = [linear.register_forward_hook(lambda *call: given.append(call[-1])) for linear in qkv]
    try:
        with evaluation_mode(attention):  # dropout would draw
            handed, tables = _hand_over(attention, rotary, kind, int(qkv[0].in_features), norm, weight)
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None  # called in another way, as Qwen 3.5 in transformers 5.17, which wants positions on three axes
    finally:
        for hook in hooks:
            hook.remove()
    if not handed or len(given) != len(qkv):
        return None
    queries, width = query_heads * head_dim, key_heads * head_dim
    columns = slice(queries, queries + width) if queries else slice(-width, None)
    raw = torch.cat(given, -1)[0, :, columns].float()
    # Latent attention hands over its narrow rows, of which what is rotated comes second, or the keys of all heads.
    found = [one[0].transpose(0, 1).float() for one in (handed[:1] if queries else handed)]
    if not queries:
        found = [one[:, :1, -width:] for one in found]
    found = [one for one in found if one.shape == (len(POSITIONS), key_heads, head_dim)]
    if to_halves(tables[0]).shape[-1] > head_dim:
        return None
    for turning in _candidates(norm is not None):
        mine = _turn(turning, raw, norm, weight, tables, key_heads, head_dim)
        same = [mine]
        if (
            turning.interleaved and not queries
        ):  # DeepSeek V3 leaves query and key in another order, both alike
            same.append(torch.cat((mine[..., ::2], mine[..., 1::2]), -1))
        if any(relative_error(one, keys) <= TOLERANCE for one in same for keys in found):
            return turning
    return None


def _candidates(has_norm: bool) -> Iterator[Turning]:
    for norm_last in (False, True)[: 1 + has_norm]:
        for interleaved in (False, True):
            yield Turning(interleaved=interleaved, norm_last=norm_last)
    yield Turning(rotated=False)


def _draw(norm: Norm) -> Tensor:
    """Return another weight for `norm`: one of equal values, as a fresh one is, gives the same before and after."""
    drawn = torch.rand(norm.weight.shape, generator=torch.Generator().manual_seed(1)) + 0.5
    return drawn.to(norm.weight.device, norm.weight.dtype)


def _hand_over(
    attention: nn.Module, rotary: nn.Module, kind: str, width: int, norm: Norm | None, weight: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    """Return the keys (1, key heads, P, d) and values that `attention` hands to its cache, and its tables.

    `weight`: what the keys' `norm` holds meanwhile.
    """
    first = next(parameter for parameter in attention.parameters() if parameter.is_floating_point())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, len(POSITIONS), width, generator=generator).to(first.device, first.dtype)
    positions = torch.tensor([POSITIONS], device=first.device)
    given = ask_module(rotary, x, positions, kind)
    tables = as_tables(given)
    options = {
        "hidden_states": x,
        "position_embeddings": given,
        "attention_mask": None,
        "position_ids": positions,
        "past_key_values": _Cache(),
    }
    if "shared_kv_states" in (taken := inspect.signature(attention.forward).parameters):
        options["shared_kv_states"] = {}  # Gemma 4's, into which a layer may put its keys for others
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        options = {name: value for name, value in options.items() if name in taken}
    if not {"hidden_states", "position_embeddings", "past_key_values"} <= taken.keys():
        return (), tables
    held = {} if norm is None else {
        name: weight for name, one in attention.named_parameters() if one is norm.module.weight
    }  # fmt: skip
    try:
        functional_call(attention, held, (), options)
    except _Handed as handed:
        return (handed.keys, handed.values), tables
    return (), tables


def _turn(
    turning: Turning, raw: Tensor, norm: Norm | None, weight: Tensor | None, tables: tuple[Tensor, Tensor],
    heads: int, head_dim: int,
) -> Tensor:  # fmt: skip
    """Return the keys (P, heads, d) in fp32 that `turning` makes of `raw` (P, heads d)."""
    keys = raw
    if norm is not None and not turning.norm_last:
        keys = _normalise(norm, weight, keys)
    if turning.rotated:
        cos, sin = (to_halves(table[0].float()) for table in tables)
        places = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
        keys = torch.cat(
            (keys, keys.new_zeros(len(keys), 2 * heads * head_dim)), -1
        )  # as if all were queries
        rope.reference_forward(keys, cos, sin, places, heads, 0, head_dim, interleaved=turning.interleaved)
        keys = keys[:, : heads * head_dim]
    if norm is not None and turning.norm_last:
        keys = _normalise(norm, weight, keys)
    return keys.unflatten(-1, (heads, head_dim))


def _normalise(norm: Norm, weight: Tensor, keys: Tensor) -> Tensor:
    rows = keys.unflatten(-1, (-1, weight.numel()))
    return compose(rows, weight.float(), *norm.options).flatten(-2)
