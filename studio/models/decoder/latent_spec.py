"""Reads multi-head latent attention (DeepSeek V2 and V3, GLM-4.7-Flash): its linears, norms and widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from studio.models.decoder.layer_parts import Unlike, count_features, find_linears, find_norm
from studio.models.decoder.structure import GROUPS, LATENT_NORMS
from studio.models.norm_probe import Norm


@dataclass(frozen=True, slots=True)
class Latent:
    """What attention has whose keys and values come from one narrow row a token."""

    query_up: nn.Module | None
    """Gives the queries from their own narrow row; None where they come from the layer's."""
    value_up: nn.Module
    """Gives each head's key, but for its rotated part, and its value."""
    query_rank: int
    """Columns of the queries' narrow row, or of the queries themselves."""
    rank: int
    """Columns of the keys' and values' narrow row."""
    rotary_dim: int
    """The last columns of query and key, which alone are rotated; the keys' are the same for all heads."""
    value_dim: int
    """Of a value, and so of a head's result."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """All widths."""
        return self.query_rank, self.rank, self.rotary_dim, self.value_dim

    @property
    def groups(self) -> dict[str, tuple[nn.Module, ...]]:
        """As LayerSpec.groups has them: the linears that widen the narrow rows."""
        queries = {} if self.query_up is None else {"query_up": (self.query_up,)}
        return queries | {"value_up": (self.value_up,)}


def is_latent(attention: nn.Module) -> bool:
    """Return whether `attention` has the linear that widens keys and values."""
    return hasattr(attention, GROUPS["value_up"][0][0].rpartition(".")[2])


def read_latent(layer: nn.Module) -> tuple[Latent, tuple[nn.Module, ...], dict[str, Norm | None], int, int]:
    """Return what is special, the linears that read the layer's rows, norms by LayerSpec's names, heads and head width.

    Raises Unlike where widths do not add up, or values are wider than keys.
    """
    attention = layer.self_attn
    widths = [_width(attention, name) for name in ("num_heads", "qk_rope_head_dim", "v_head_dim")]
    heads, rotary_dim, value_dim = widths
    qkv = find_linears(layer, "qkv")
    (value_up,), (output,) = find_linears(layer, "value_up"), find_linears(layer, "output")
    up = getattr(attention, GROUPS["query_up"][0][0].rpartition(".")[2], None)
    rank, given = count_features(value_up)
    narrow, outer = count_features(qkv[0])[1], count_features(qkv[-1])[1]
    head_dim = (narrow if up is None else count_features(up)[1]) // heads
    fits = (
        len(qkv) == 2
        and outer == rank + rotary_dim
        and given == heads * (head_dim - rotary_dim + value_dim)
        and count_features(output)[0] == heads * value_dim
        and (up is None or count_features(up)[0] == narrow)
        and 0 < value_dim <= head_dim
        and 0 < rotary_dim < head_dim
    )
    if not fits:
        raise Unlike("self_attn")
    norms = {
        "query_norm": None if up is None else find_norm(attention, LATENT_NORMS[0].rpartition(".")[2]),
        "key_norm": find_norm(attention, LATENT_NORMS[1].rpartition(".")[2]),
    }
    return Latent(up, value_up, narrow, rank, rotary_dim, value_dim), qkv, norms, heads, head_dim


def _width(attention: nn.Module, name: str) -> int:
    value: Any = getattr(attention, name, None)
    if not isinstance(value, int) or value <= 0:
        raise Unlike(name)
    return value
