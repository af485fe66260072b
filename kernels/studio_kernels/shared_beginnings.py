"""Attention of documents that begin alike, whose beginning stands in the stream once: b x y for the texts bx and by.

    out = S A(R q, R k, R v)        dq = S A'_q        dk = R^T A'_k        dv = R^T A'_v        A' at dout' = S^T dout

R (E, T) writes the T rows of the stream out as the E rows of whole documents, S (T, E) takes each row's first place. A
is attention of these documents by any backend, with windows, sinks and capped scores as they are: a beginning's queries
give the same at all its places, so only the first sends a gradient, while its keys and values take those of all. That
sum has a fixed order. Linears, norms, MLPs and all that is kept of them see T rows; attention alone sees E.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Saved = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedBeginnings:
    """Which row of the stream stands where in its documents, written out; all int64 on the device."""

    rows: Tensor
    """(E,) the stream's row at each place."""
    own: Tensor
    """(T,) the first place of each row."""
    again: tuple[tuple[Tensor, Tensor], ...]
    """Rows that stand in a second, a third .. document, (n,) each, none twice in one, and their places there."""


def forward(
    attend: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Saved]],
    shared: SharedBeginnings,
    q: Tensor,  # (T, query heads, d)
    k: Tensor,  # (T, key heads, d)
    v: Tensor,
) -> tuple[Tensor, Saved]:
    """(out (T, query heads, d), saved, of E rows), where `attend` computes whole documents."""
    out, saved = attend(*(x.index_select(0, shared.rows) for x in (q, k, v)))
    return out.index_select(0, shared.own), saved


def backward(
    go_back: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    shared: SharedBeginnings,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) in the shapes of q, k, v, where `go_back` computes whole documents."""
    upstream = dout.new_zeros(len(shared.rows), *dout.shape[1:]).index_copy_(0, shared.own, dout)
    dq, dk, dv = go_back(upstream, *(x.index_select(0, shared.rows) for x in (q, k, v, out)))
    return dq.index_select(0, shared.own), _gather(dk, shared), _gather(dv, shared)


def _gather(places: Tensor, shared: SharedBeginnings) -> Tensor:
    """R^T of (E, heads, d): summed in float32 at least, rounded once."""
    wide = torch.promote_types(places.dtype, torch.float32)
    total = places.index_select(0, shared.own).to(wide)
    for rows, again in shared.again:  # no row twice in one sum: no order is left to chance
        total.index_add_(0, rows, places.index_select(0, again).to(wide))
    return total.to(places.dtype)
