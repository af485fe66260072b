"""The ways to compute attention: PyTorch's own kernels, called by their operators, our own, and the composed form.

Mathematics, shapes and `saved` stand in `attention`. All are causal; cuDNN and the CPU know no window, no library knows
a softcap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels import attention_reference, flash
from studio_kernels.varlen import Documents, Heads

Saved = tuple[Tensor, ...]
CAUSAL_FROM_TOP_LEFT = 1
"""`CustomMaskType` of PyTorch's memory-efficient kernel."""
SUM_STEP_TOKENS = 32
"""The memory-efficient kernel pads its log-sums to multiples of this, with infinity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionBackend:
    """One way."""

    name: str
    forward: Callable[[Tensor, Tensor, Tensor, Documents, Heads], tuple[Tensor, Saved]]
    backward: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor, Saved, Documents, Heads], tuple[Tensor, Tensor, Tensor]
    ]
    log_sums: Callable[[Tensor], Tensor] = lambda sums: sums
    """The logs of each softmax's denominator, (T, query heads), from the first that `forward` saved."""
    place_heads: Callable[[Tensor], Tensor] = lambda values: values
    """One number for each query head, (query heads,), as it stands beside these."""
    operators: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    """Of `torch.ops.aten`: name, number of positional arguments, and keywords, as the functions use them."""


def _batched(x: Tensor, documents: Documents) -> Tensor:
    """(T, n, d) of equal documents as (B, n, S, d), a view."""
    return x.unflatten(0, (len(documents.lengths), documents.uniform)).transpose(1, 2)


def _flattened(x: Tensor) -> Tensor:
    """(B, n, S, d) as (T, n, d); a view of what the kernels return."""
    return x.transpose(1, 2).flatten(0, 1)


def _cudnn_forward(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents, heads: Heads
) -> tuple[Tensor, Saved]:
    out, sums, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        *(_batched(x, documents) for x in (q, k, v)), None, True, 0.0, True, False, scale=heads.scale
    )
    return _flattened(out), (sums, seed, offset)


def _cudnn_sums(sums: Tensor) -> Tensor:
    """Of (B, n, S, 1)."""
    return sums.flatten(2).transpose(1, 2).flatten(0, 1)


def _cudnn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: Saved,
    documents: Documents,
    heads: Heads,
) -> tuple[Tensor, Tensor, Tensor]:
    sums, seed, offset = saved
    length = documents.uniform
    dout, q, k, v, out = (_batched(x, documents) for x in (dout, q, k, v, out))
    gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        dout, q, k, v, out, sums, seed, offset, None, None, None, length, length, 0.0, True, scale=heads.scale
    )
    dq, dk, dv = (_flattened(x) for x in gradients)
    return dq, dk, dv


def _flash_window(documents: Documents, heads: Heads) -> dict[str, int]:
    window = heads.window_of(documents)
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


def _flash_forward(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents, heads: Heads
) -> tuple[Tensor, Saved]:
    # From 2: told that the longest has one token, the kernel exchanges heads for rows and loses the causal mask.
    starts, longest = documents.starts, max(2, documents.longest)
    out, sums, seed, offset, _ = torch.ops.aten._flash_attention_forward.default(
        q, k, v, starts, starts, longest, longest, 0.0, True, False,
        scale=heads.scale, **_flash_window(documents, heads),
    )  # fmt: skip
    return out, (sums, seed, offset)


def _flash_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: Saved,
    documents: Documents,
    heads: Heads,
) -> tuple[Tensor, Tensor, Tensor]:
    sums, seed, offset = saved
    starts, longest = documents.starts, max(2, documents.longest)
    return torch.ops.aten._flash_attention_backward.default(
        dout, q, k, v, out, sums, starts, starts, longest, longest, 0.0, True, seed, offset,
        scale=heads.scale, **_flash_window(documents, heads),
    )  # fmt: skip


def _repeated(x: Tensor, heads: Heads) -> Tensor:
    """(T, key heads, d) as (1, T, query heads, d); a copy unless the numbers are equal."""
    return x.repeat_interleave(heads.query_heads // heads.key_heads, 1)[None]


def _summed(x: Tensor, heads: Heads) -> Tensor:
    """The transpose of `_repeated`."""
    return x[0].unflatten(1, (heads.key_heads, -1)).sum(2) if heads.query_heads != heads.key_heads else x[0]


def _most(documents: Documents) -> int:
    """No less than the longest document has; more than T is refused, and a captured graph may know only a bound."""
    return min(documents.longest, documents.tokens)


def _sum_places(documents: Documents) -> tuple[Tensor, Tensor]:
    """Each token's document and place, (T,) int64: where its log-sum stands in the kernel's padded tensor."""
    token = torch.arange(documents.tokens, dtype=torch.int32, device=documents.starts.device)
    return torch.bucketize(token, documents.starts[1:], right=True), documents.positions.long()


def _efficient_forward(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents, heads: Heads
) -> tuple[Tensor, Saved]:
    starts, longest = documents.starts, _most(documents)
    out, sums, seed, offset, _, _ = torch.ops.aten._efficient_attention_forward.default(
        q[None], _repeated(k, heads), _repeated(v, heads), None, starts, starts, longest, longest, 0.0,
        CAUSAL_FROM_TOP_LEFT, True, scale=heads.scale, window_size=heads.window_of(documents) or None,
    )  # fmt: skip
    # (documents, query heads, longest padded) would be many times T where one document is long: (T, query heads).
    document, place = _sum_places(documents)
    return out[0], (sums[document, :, place], seed, offset)


def _efficient_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: Saved,
    documents: Documents,
    heads: Heads,
) -> tuple[Tensor, Tensor, Tensor]:
    compact, seed, offset = saved
    starts, longest = documents.starts, _most(documents)
    padded = -(-longest // SUM_STEP_TOKENS) * SUM_STEP_TOKENS
    sums = compact.new_full((len(documents.lengths), heads.query_heads, padded), float("inf"))
    document, place = _sum_places(documents)
    sums[document, :, place] = compact
    dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward.default(
        dout[None], q[None], _repeated(k, heads), _repeated(v, heads), None, out[None], starts, starts,
        longest, longest, sums, 0.0, seed, offset, CAUSAL_FROM_TOP_LEFT, False,
        scale=heads.scale, window_size=heads.window_of(documents) or None,
    )  # fmt: skip
    return dq[0], _summed(dk, heads), _summed(dv, heads)


CUDNN = AttentionBackend(
    name="cudnn",
    forward=_cudnn_forward,
    backward=_cudnn_backward,
    log_sums=_cudnn_sums,
    place_heads=lambda values: values[:, None, None],
    operators=(
        ("_scaled_dot_product_cudnn_attention", 8, ("scale",)),
        ("_scaled_dot_product_cudnn_attention_backward", 15, ("scale",)),
    ),
)
_WINDOW_KEYWORDS = ("scale", "window_size_left", "window_size_right")
FLASH = AttentionBackend(
    name="flash",
    forward=_flash_forward,
    backward=_flash_backward,
    log_sums=lambda sums: sums.T,
    place_heads=lambda values: values[:, None],
    operators=(
        ("_flash_attention_forward", 10, _WINDOW_KEYWORDS),
        ("_flash_attention_backward", 14, _WINDOW_KEYWORDS),
    ),
)
EFFICIENT = AttentionBackend(
    name="efficient",
    forward=_efficient_forward,
    backward=_efficient_backward,
    operators=(
        ("_efficient_attention_forward", 11, ("scale", "window_size")),
        ("_efficient_attention_backward", 16, ("scale", "window_size")),
    ),
)
TRITON = AttentionBackend(name="triton", forward=flash.fused_forward, backward=flash.fused_backward)
MATH = AttentionBackend(
    name="math", forward=attention_reference.forward, backward=attention_reference.backward
)


def _cpu_views(tensors: Sequence[Tensor], rows: slice, count: int) -> list[Tensor]:
    """(T, n, ...) as (B, n, S, ...), the rows of `count` equal documents."""
    return [x[rows].unflatten(0, (count, -1)).transpose(1, 2) for x in tensors]


def _cpu_forward(q: Tensor, k: Tensor, v: Tensor, documents: Documents, heads: Heads) -> tuple[Tensor, Saved]:
    out = torch.empty(q.shape, dtype=q.dtype)
    sums = torch.empty(q.shape[:2], dtype=torch.promote_types(q.dtype, torch.float32))
    for rows, count in attention_reference.batches(documents):
        views = _cpu_views((q, k, v), rows, count)
        result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            *views, 0.0, True, scale=heads.scale
        )
        for whole, part in zip((out, sums), result, strict=True):
            _cpu_views((whole,), rows, count)[0].copy_(part)
    return out, (sums,)


def _cpu_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: Saved,
    documents: Documents,
    heads: Heads,
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = [torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v)]
    for rows, count in attention_reference.batches(documents):
        views = _cpu_views((dout, q, k, v, out, *saved), rows, count)
        result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            *views, 0.0, True, scale=heads.scale
        )
        for whole, part in zip(gradients, result, strict=True):
            _cpu_views((whole,), rows, count)[0].copy_(part)
    return tuple(gradients)


CPU = AttentionBackend(
    name="cpu",
    forward=_cpu_forward,
    backward=_cpu_backward,
    operators=(
        ("_scaled_dot_product_flash_attention_for_cpu", 5, ("scale",)),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", 8, ("scale",)),
    ),
)
