"""What kernels.py times of the gated delta rule: ours beside the function of transformers' own files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence

import torch
from studio_kernels.row_chunks import CHUNK, Chunks
from torch import Tensor

from benchmarks.kernel_cases import Workload, backward_of, draw, each, ours


def stock_rule() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """transformers' own, in PyTorch alone."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    return inspect.unwrap(modeling_qwen3_5.torch_chunk_gated_delta_rule)


def make_rows(lengths: Sequence[int], key_heads: int, heads: int, dim: int) -> tuple[Tensor, ...]:
    """q, k, v, g and beta; states last for some 30 tokens."""
    rows = sum(lengths)
    q, k = (draw(rows, key_heads, dim) for _ in range(2))
    v, beta = draw(rows, heads, dim), draw(rows, heads).sigmoid_()
    return q, k, v, draw(rows, heads, dtype=torch.float32).abs_().mul_(-0.04), beta


def run_stock(lengths: Sequence[int], rows: Sequence[Tensor]) -> Tensor:
    """o (T, heads, E) by transformers' function; documents of equal lengths are a batch."""
    rule, batch = stock_rule(), len(lengths) if len(set(lengths)) == 1 else 0
    repeats = rows[2].shape[1] // rows[1].shape[1]
    rows = [part.repeat_interleave(repeats, 1) if at < 2 else part for at, part in enumerate(rows)]

    def call(*parts: Tensor) -> Tensor:
        return rule(*parts, use_qk_l2norm_in_kernel=True)[0].flatten(0, 1)

    if batch:
        return call(*(part.unflatten(0, (batch, -1)) for part in rows))
    documents = zip(*(part.split(tuple(lengths)) for part in rows), strict=True)
    return torch.cat([call(*(part[None] for part in document)) for document in documents])


def delta_rules(lengths: Sequence[int], key_heads: int, heads: int, dim: int) -> Iterator[Workload]:
    """Forward, and backward with all that it computes again."""
    rows = make_rows(lengths, key_heads, heads, dim)
    chunks, options = Chunks(lengths, rows[0].device), {"scale": dim**-0.5}
    kinds = ours("gated_delta", compiled=False)
    shape = f"{'+'.join(map(str, lengths))} x {heads} of {dim}"
    products = 2 * sum(lengths) * heads * dim
    calls = each(kinds, lambda i: (i.forward(*rows, chunks, **options),))
    calls["transformers"] = lambda: (run_stock(lengths, rows),)
    yield Workload(
        op="gated_delta",
        direction="forward",
        shape=shape,
        calls=calls,
        flops=products * (5 * CHUNK + 3 * dim),
    )
    dout = draw(*rows[2].shape)
    calls = each(kinds, lambda i: i.backward(dout, *rows, chunks, **options))
    trained = [part.detach().requires_grad_() for part in rows]
    calls["transformers"] = backward_of([run_stock(lengths, trained)], trained, [dout])
    yield Workload(
        op="gated_delta", direction="backward", shape=shape, calls=calls,
        flops=products * (13 * CHUNK + 8 * dim),
    )  # fmt: skip
