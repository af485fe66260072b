"""What a kind of attention gives, makes and needs of a token, in columns: elements of T rows.

Q, K: width of all query heads, of all key heads. Of latent attention (blocks/latent_attention.py) keys are as many as
queries, and values may be narrower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from studio.models.decoder.structure import GROUPS

(QUERY_UP,), (VALUE_UP,) = GROUPS["query_up"][0], GROUPS["value_up"][0]
(OUTPUT, *_), *_ = GROUPS["output"]
FLASH_COLUMNS = 256
"""Wider heads go by PyTorch's memory-efficient attention, which reads a key head for each query head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """Of `layers` layers (models/decoder/blocks/attention.py)."""

    layers: int
    query_heads: int
    queries: int
    """Q."""
    result: int
    """Attention's result."""
    projected: int
    """What its linears give, kept from the level `qkv` on."""
    made: int
    """What is made of that anew for the backward pass: heads after their norms, or keys and values of narrow rows."""
    gradients: int
    """Of the result, query, key and value."""
    grouped: bool
    """Whether query heads share a key head."""

    def state_bytes(self, element_bytes: int) -> int:
        """Return what the result and the log-sums in fp32 take of a token."""
        return element_bytes * self.result + 4 * self.query_heads

    def gradient_bytes(self, element_bytes: int) -> int:
        """Return what a token takes while attention runs back, beside what is kept."""
        columns = self.gradients + self.made
        # Flash attention makes a gradient of key and value for each query head before it sums them.
        columns += 2 * self.queries * self.grouped
        # Sums in fp32: the query's gradient, and each head's.
        return element_bytes * columns + 4 * self.queries + 8 * self.query_heads


def shape_attention(
    linears: Mapping[str, tuple[int, int]], layers: int, query_heads: int, head_dim: int, *, head_norms: bool
) -> AttentionShape:
    """Return the AttentionShape of layers with these linears, name -> (outputs, inputs), without those of the MLP."""
    given = sum(outputs for name, (outputs, _) in linears.items() if not _returns(name))
    if VALUE_UP in linears:
        return _shape_latent(linears, layers, query_heads, given)
    queries = query_heads * head_dim
    tied = "self_attn.k_proj" in linears and "self_attn.v_proj" not in linears
    keys = (given - queries) // (2 - tied)
    repeated = 2 * queries * (head_dim > FLASH_COLUMNS and keys < queries)
    return AttentionShape(
        layers=layers,
        query_heads=query_heads,
        queries=queries,
        result=queries,
        projected=given,
        made=(queries + keys) * head_norms + keys * tied + repeated,
        gradients=2 * queries + 2 * keys,
        grouped=keys < queries,
    )


def _shape_latent(
    linears: Mapping[str, tuple[int, int]], layers: int, query_heads: int, given: int
) -> AttentionShape:
    queries = linears[QUERY_UP if QUERY_UP in linears else "self_attn.q_proj"][0]
    result = linears[OUTPUT][1]
    filled = 3 * queries * (result < queries)  # values, the result and its gradient with zeros beside them
    return AttentionShape(
        layers=layers,
        query_heads=query_heads,
        queries=queries,
        result=result,
        projected=given,
        made=queries + filled,
        gradients=result + 3 * queries,
        grouped=False,
    )


def _returns(name: str) -> bool:
    return name.rpartition(".")[2] in ("o_proj", "out_proj")
