"""Reads a layer's attention: its linears, norms, widths, windows and tables, and how it turns queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from studio.models.decoder.latent_spec import is_latent, read_latent
from studio.models.decoder.layer_parts import (
    Unlike,
    count_features,
    find_child,
    find_head_norms,
    find_linears,
    find_norm,
    find_part,
    find_value_norm,
    refuse_strangers,
    scalars_of,
)
from studio.models.decoder.own_inputs import Given, OwnInputs
from studio.models.decoder.query_scale import read_query_scale
from studio.models.decoder.rotary import NO_ROTARY
from studio.models.decoder.rotary_probe import Turning, find_turning
from studio.models.decoder.structure import HEAD_NORM_FORMS, SINKS
from studio.models.norm_probe import Norm


@dataclass(slots=True)
class ModelReading:
    """What is known while a model's layers are read, one after another."""

    config: Any
    kinds: Sequence[str]
    rotary: nn.Module | None
    inputs: OwnInputs
    turnings: dict[tuple, Turning] = field(default_factory=dict)
    given: list[Given] | None = None
    """What the model's own decoder gives its layers; asked for where one of them has a mixer that we do not know."""
    lenders: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """Of each kind of layer the last one that makes keys and values, its number and LayerSpec's fields."""

    def find_turning(
        self, likeness: tuple, attention: nn.Module, table: str, qkv: tuple[nn.Module, ...], norm: Norm | None,
        sizes: tuple[int, int, int],
    ) -> Turning:  # fmt: skip
        """Return how `attention` turns its keys, tried once for modules of one `likeness`; else see find_turning()."""
        if likeness not in self.turnings:
            turning = find_turning(attention, self.rotary, table, qkv, norm, sizes)
            if turning is None:
                raise Unlike("rotary_emb")
            self.turnings[likeness] = turning
        return self.turnings[likeness]

    def kind(self, number: int) -> str:
        """Return what the config calls a layer, "" where it has no names."""
        return self.kinds[number] if self.kinds else ""


NO_ATTENTION = dict.fromkeys(
    ("sinks", "query_norm", "key_norm", "value_norm", "latent", "source", "output", "query_scale")
)
NO_ATTENTION |= dict.fromkeys(("query_heads", "key_heads", "head_dim", "scale", "window", "softcap"), 0)
NO_ATTENTION |= {"qkv": (), "values_are_keys": False, "rotary": NO_ROTARY, "turning": Turning()}
"""What is told of attention in a layer whose mixer is the model's own module."""


def read_attention(layer: nn.Module, number: int, reading: ModelReading) -> dict[str, Any]:
    """Return LayerSpec's fields of an attention that we compute by ourselves."""
    attention, config, kind = find_child(layer, "self_attn"), reading.config, reading.kind(number)
    sinks = getattr(attention, SINKS, None)
    refuse_strangers(attention, "attention")
    if reading.rotary is None:
        raise Unlike("rotary_emb")
    if getattr(attention, "attention_dropout", 0.0) or getattr(config, "attention_dropout", 0.0):
        raise Unlike("attention_dropout")
    if is_latent(attention):
        return _read_latent(layer, reading, kind)
    head_dim = int(attention.head_dim)
    qkv = find_linears(layer, "qkv")
    (output,) = find_linears(layer, "output")
    query_width = count_features(output)[0]
    together = sum(count_features(module)[1] for module in qkv)
    if together == query_width:
        return _read_borrowed(layer, kind, reading, qkv, output)
    tied = len(qkv) == 2
    key_width = (together - query_width) // (2 - tied)
    if query_width % head_dim or key_width % head_dim or query_width + (2 - tied) * key_width != together:
        raise Unlike("self_attn")
    heads = query_width // head_dim, key_width // head_dim
    if sinks is not None and sinks.shape != heads[:1]:
        raise Unlike(SINKS)
    query_norm, key_norm = find_head_norms(layer, (query_width, key_width), head_dim)
    table = _name_table(config, kind)
    likeness = (table, scalars_of(attention), key_norm and key_norm.options)
    turning = reading.find_turning(likeness, attention, table, qkv, key_norm, (*heads, head_dim))
    if tied and (key_norm is None or turning.norm_last):
        raise Unlike("v_proj")
    fields = {
        "mixer": None,
        "latent": None,
        "source": None,
        "sinks": sinks,
        "query_norm": query_norm,
        "key_norm": key_norm,
        "value_norm": find_value_norm(attention, head_dim),
        "qkv": qkv,
        "values_are_keys": tied,
        "output": output,
        "query_heads": heads[0],
        "key_heads": heads[1],
        "head_dim": head_dim,
        "scale": float(attention.scaling),
        "window": _window(attention, config, kind),
        "softcap": float(getattr(attention, "attn_logit_softcapping", None) or 0.0),
        "rotary": table if turning.rotated else NO_ROTARY,
        "turning": turning,
        "query_scale": read_query_scale(config),
    }
    reading.lenders[kind] = number, fields
    return fields


def _read_borrowed(
    layer: nn.Module, kind: str, reading: ModelReading, qkv: tuple[nn.Module, ...], output: nn.Module
) -> dict[str, Any]:
    """Return LayerSpec's fields of an attention with queries alone: all else is as in the layer that lends to it."""
    number, fields = reading.lenders.get(kind, (0, {}))
    norm = fields.get("query_norm")
    queries = fields and fields["query_heads"] * fields["head_dim"]
    if not fields or queries != count_features(output)[0] or fields["sinks"] is not None:
        raise Unlike("k_proj")
    name = next((names[0] for names in HEAD_NORM_FORMS if find_part(layer, names[0]) is not None), None)
    own = None if name is None else find_norm(layer.self_attn, name.partition(".")[2])
    if (own and own.weight.shape) != (norm and norm.weight.shape) or fields["turning"].norm_last:
        raise Unlike("q_norm")
    return fields | {
        "source": number, "qkv": qkv, "output": output, "query_norm": own, "key_norm": None, "value_norm": None,
        "values_are_keys": False,
    }  # fmt: skip


def _name_table(config: Any, kind: str) -> str:
    """Return under which name the rotary module has the tables of layers of `kind`; "" where it has one for all."""
    per_layer = isinstance(getattr(config, "rope_parameters", None), dict) and kind in config.rope_parameters
    return kind if per_layer else ""


def _read_latent(layer: nn.Module, reading: ModelReading, kind: str) -> dict[str, Any]:
    """Return LayerSpec's fields of an attention whose keys and values come from a narrow row."""
    attention, config = layer.self_attn, reading.config
    latent, qkv, norms, heads, head_dim = read_latent(layer)
    (output,) = find_linears(layer, "output")
    table = _name_table(config, kind)
    likeness, sizes = (table, scalars_of(attention)), (0, 1, latent.rotary_dim)
    turning = reading.find_turning(likeness, attention, table, qkv, None, sizes)
    return NO_ATTENTION | norms | {
        "mixer": None,
        "latent": latent,
        "qkv": qkv,
        "output": output,
        "query_heads": heads,
        "key_heads": heads,
        "head_dim": head_dim,
        "scale": float(attention.scaling),
        "window": _window(attention, config, kind),
        "rotary": table if turning.rotated else NO_ROTARY,
        "turning": turning,
        "query_scale": read_query_scale(config),
    }  # fmt: skip


def _window(attention: nn.Module, config: Any, kind: str) -> int:
    """Return how many tokens a token sees, 0 for all: EXAONE 4 names the window in layers that have none, too."""
    if kind and "sliding" not in kind:
        return 0
    holder = attention if hasattr(attention, "sliding_window") else config
    return int(getattr(holder, "sliding_window", None) or 0)
