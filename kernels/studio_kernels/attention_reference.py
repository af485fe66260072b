"""Causal attention composed of matrix products: any device and dtype, with softcap and window; twin and last fallback.

The mathematics stands in `attention`. Rows of queries go block by block, so that no T x T matrix is held: at most
`SCORES_BYTES` of scores at a time. Heads that share a key head are rows of one product. Scores, softmax and all
sums are float32 (float64 for float64); the factors of every product have the tensors' own dtype.

The backward pass takes the softmax anew instead of exp(score - log-sum): a log-sum of 1,000 is rounded by 6e-5, by
which all shares of a row would be off together, and where attention is peaked the gradient is what is left of their
difference (layer 0 of qwen2.5-coder-0.5b: off by 4e-4, and by 1e-5 so).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from studio_kernels.op import SCORES_BYTES
from studio_kernels.varlen import Documents, Heads

LEAST_ROWS = 16


def forward(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents, heads: Heads, sinks: Tensor | None = None
) -> tuple[Tensor, tuple[()]]:
    """(out (T, query heads, d), nothing to be kept); q (T, query heads, d), k, v (T, key heads, d).

    `sinks` (query heads,): see attention_sinks.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for rows, batch in batches(documents):
        keys, values = _by_key_head(k[rows], batch), _by_key_head(v[rows], batch)
        for some, seen in _blocks(batch, rows, heads):
            queries = _queries(q[rows], batch, some, heads)
            scores, _ = _scores(queries, keys[:, seen], some, seen, heads)
            shares, _ = _softmax(scores, sinks, batch, heads)
            del scores
            result = torch.bmm(shares.to(q.dtype), values[:, seen])
            _split(out[rows], batch)[:, some] = _rows(result, batch, heads)
    return out, ()


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: tuple[Tensor, ...],
    documents: Documents,
    heads: Heads,
    sinks: Tensor | None = None,
    dsinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) in the shapes of q, k, v; `dsinks` (query heads,), where given, is added to."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    for rows, batch in batches(documents):
        keys, values = _by_key_head(k[rows], batch), _by_key_head(v[rows], batch)
        key_sum = torch.zeros(keys.shape, dtype=_wide(k), device=k.device)
        value_sum = torch.zeros_like(key_sum)
        for some, seen in _blocks(batch, rows, heads):
            queries = _queries(q[rows], batch, some, heads)
            upstream = _queries(dout[rows], batch, some, heads)
            scores, slope = _scores(queries, keys[:, seen], some, seen, heads)
            shares, sunk = _softmax(scores, sinks, batch, heads)
            del scores
            value_sum[:, seen] += _product(shares.to(q.dtype).mT, upstream)
            gradient = _product(upstream, values[:, seen].mT)
            if dsinks is not None:
                products = (shares * gradient).sum(-1, keepdim=True).mul_(sunk)
                dsinks.sub_(_by_head(products, batch, heads).sum((0, 2)).to(dsinks.dtype))
            # Its sum of share x gradient is exact where one share is 1, unlike that of result x gradient.
            gradient = torch.ops.aten._softmax_backward_data.default(gradient, shares, -1, shares.dtype)
            del shares
            if slope is not None:
                gradient.mul_(slope)
            gradient = gradient.to(q.dtype)
            result = _product(gradient, keys[:, seen]).mul_(heads.scale)
            _split(dq[rows], batch)[:, some] = _rows(result, batch, heads).to(q.dtype)
            key_sum[:, seen] += _product(gradient.mT, queries).mul_(heads.scale)
        for target, total in ((dk, key_sum), (dv, value_sum)):
            _split(target[rows], batch).copy_(total.unflatten(0, (batch, -1)).transpose(1, 2))
    return dq, dk, dv


def _softmax(scores: Tensor, sinks: Tensor | None, batch: int, heads: Heads) -> tuple[Tensor, Tensor | None]:
    """Shares of the keys, and what the sinks take of each row (.., 1), None without them."""
    if sinks is None:
        return torch.softmax(scores, -1), None
    column = sinks.to(scores.dtype).view(1, heads.key_heads, -1, 1).expand(batch, -1, -1, 1)
    rows = scores.shape[1] // column.shape[2]
    column = column.reshape(-1, column.shape[2]).repeat_interleave(rows, 1)[..., None]
    shares = torch.softmax(torch.cat((scores, column), -1), -1)
    return shares[..., :-1].contiguous(), shares[..., -1:]


def _by_head(x: Tensor, batch: int, heads: Heads) -> Tensor:
    """(batch * key heads, shared heads * places, 1) as (batch, query heads, places)."""
    shared = heads.query_heads // heads.key_heads
    return x.view(batch, heads.key_heads * shared, -1)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def batches(documents: Documents) -> Iterator[tuple[slice, int]]:
    """The rows of documents that are computed together, and how many documents those are: neighbours of one length.

    Raises:
        ValueError: the lengths are not those of all tokens, as in a captured graph, where only bounds are known.
    """
    lengths = documents.lengths
    if sum(lengths) != documents.tokens:
        raise ValueError(f"Documents of {sum(lengths)} tokens do not make up {documents.tokens}.")
    start = first = 0
    for number, length in enumerate(lengths):
        if number + 1 == len(lengths) or lengths[number + 1] != length:
            count = number + 1 - first
            yield slice(start, start + count * length), count
            start, first = start + count * length, number + 1


def _blocks(batch: int, rows: slice, heads: Heads) -> Iterator[tuple[slice, slice]]:
    """Queries of one block and the keys that any of them sees, as places in the document."""
    length = (rows.stop - rows.start) // batch
    widest = min(length, heads.window + length // 2) if heads.window else length
    size = max(LEAST_ROWS, SCORES_BYTES // (4 * batch * heads.query_heads * widest))
    for start in range(0, length, size):
        stop = min(length, start + size)
        yield slice(start, stop), slice(max(0, start - heads.window + 1) if heads.window else 0, stop)


def _split(x: Tensor, batch: int) -> Tensor:
    """(rows, ...) as (batch, rows of one, ...), a view."""
    return x.unflatten(0, (batch, -1))


def _by_key_head(x: Tensor, batch: int) -> Tensor:
    """(rows, key heads, d) as (batch * key heads, length, d)."""
    return _split(x, batch).transpose(1, 2).flatten(0, 1)


def _queries(x: Tensor, batch: int, some: slice, heads: Heads) -> Tensor:
    """(rows, query heads, d) as (batch * key heads, heads that share one * places in `some`, d)."""
    taken = _split(x, batch)[:, some].unflatten(2, (heads.key_heads, -1))
    return taken.permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)


def _rows(x: Tensor, batch: int, heads: Heads) -> Tensor:
    """The inverse of `_queries`: (batch, places, query heads, d)."""
    shared = heads.query_heads // heads.key_heads
    return (
        x.unflatten(1, (shared, -1))
        .unflatten(0, (batch, heads.key_heads))
        .permute(0, 3, 1, 2, 4)
        .flatten(2, 3)
    )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b, batched, in the wide dtype."""
    if a.dtype == _wide(a):
        return torch.bmm(a, b)
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def _scores(
    queries: Tensor, keys: Tensor, some: slice, seen: slice, heads: Heads
) -> tuple[Tensor, Tensor | None]:
    """Masked scores (batch, shared heads * places, keys) and, with a softcap, their derivative by the uncapped ones."""
    scores = _product(queries, keys.mT).mul_(heads.scale)
    slope = None
    if heads.softcap:
        scores.div_(heads.softcap).tanh_()
        slope = 1 - scores.square()
        scores.mul_(heads.softcap)
    query = torch.arange(some.start, some.stop, device=scores.device)[:, None]
    key = torch.arange(seen.start, seen.stop, device=scores.device)
    hidden = key > query
    if heads.window:
        hidden |= key <= query - heads.window
    scores.unflatten(1, (-1, query.shape[0])).masked_fill_(hidden, float("-inf"))
    return scores, slope
