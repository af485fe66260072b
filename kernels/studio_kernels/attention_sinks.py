"""Attention sinks: a score of its own that each query head adds to every softmax, and that no value stands behind.

    p_ij = exp(s_ij) / (sum_j exp(s_ij) + exp(z_h))        o_i = sum_j p_ij v_j

Made of attention without them, with o' and the log-sum L' of its softmax: each row keeps the share f of it,

    f_i = sigmoid(L'_i - z_h)        o_i = f_i o'_i        L_i = log(exp(L'_i) + exp(z_h))
    dz_h = - sum_i exp(z_h - L_i) do_i . o_i

and as p_ij = exp(s_ij - L_i) and ds_ij = p_ij (do_i . v_j - do_i . o_i), a backward pass without sinks gives the
gradients of q, k and v from o and L in the place of o' and L'. The composed form has the sinks as one more column of
its scores: it takes its softmax anew. T tokens, n query heads. Source: OpenAI 2025, arXiv:2508.10925; Xiao et al. 2023,
arXiv:2309.17453.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from studio_kernels import attention_reference
from studio_kernels.attention_backends import MATH, AttentionBackend, Saved
from studio_kernels.varlen import Documents, Heads


def forward(
    backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, documents: Documents, heads: Heads,
    sinks: Tensor | None,
) -> tuple[Tensor, Saved]:  # fmt: skip
    """(out (T, n, d), saved) by `backend`, with `sinks` (n,) where given."""
    if sinks is None:
        return backend.forward(q, k, v, documents, heads)
    if backend is MATH:
        return attention_reference.forward(q, k, v, documents, heads, sinks)
    out, (sums, *rest) = backend.forward(q, k, v, documents, heads)
    share = (backend.log_sums(sums) - sinks.to(sums.dtype)).sigmoid()[..., None]
    placed = backend.place_heads(sinks.to(sums.dtype))
    return (out * share).to(out.dtype), (torch.logaddexp(sums, placed), *rest)


def backward(
    backend: AttentionBackend, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, saved: Saved,
    documents: Documents, heads: Heads, sinks: Tensor | None, dsinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dq, dk, dv) from what forward() gave; `dsinks` (n,), where given, is added to."""
    if sinks is not None and backend is MATH:
        return attention_reference.backward(dout, q, k, v, out, saved, documents, heads, sinks, dsinks)
    if sinks is not None and dsinks is not None:
        sums = backend.log_sums(saved[0])
        taken = (sinks.to(sums.dtype) - sums).exp() * (dout.to(sums.dtype) * out).sum(-1)
        dsinks.sub_(taken.sum(0).to(dsinks.dtype))
    if sinks is not None:
        heads = replace(heads, sunk=True)
    return backend.backward(dout, q, k, v, out, saved, documents, heads)
