"""What kernels.py times of a step of generation: attention over pages, their filling, draws, few rows by NF4."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from studio_kernels.decode_attention import PAGE_TOKENS
from studio_kernels.nf4 import Nf4
from torch import Tensor
from torch.nn import functional

from benchmarks.kernel_cases import BYTES, Call, Workload, draw, each, ours, peer


def make_pages(slots: int, tokens: int, key_heads: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Key and value pages, the block table and lengths of slots of so many tokens, their pages in no order."""
    a_slot = -(-tokens // PAGE_TOKENS)
    k, v = (draw(slots * a_slot, PAGE_TOKENS, key_heads, width) for _ in range(2))
    table = torch.randperm(slots * a_slot).to(torch.int32).view(slots, a_slot)
    return k, v, table, torch.full((slots,), tokens, dtype=torch.int32)


def decode_attentions(
    slots: int, tokens: int, query_heads: int, key_heads: int, width: int
) -> Iterator[Workload]:
    """Every key and value is read once; PyTorch's own is given them without pages, in a row."""
    pages = make_pages(slots, tokens, key_heads, width)
    q, scale = draw(slots, query_heads, width), width**-0.5
    calls = each(ours("decode_attention", compiled=False), lambda i: (i.forward(q, *pages, scale=scale),))
    table = pages[2].long()
    k, v = (one[table].flatten(1, 2)[:, :tokens].transpose(1, 2).contiguous() for one in pages[:2])

    def stock() -> tuple[Tensor]:
        attended = functional.scaled_dot_product_attention(q[:, :, None], k, v, scale=scale, enable_gqa=True)
        return (attended[:, :, 0],)

    calls["torch"] = stock
    floor = 2 * slots * (tokens * key_heads + query_heads) * width * BYTES
    shape = f"{slots}x{tokens} ({query_heads}+{key_heads})x{width}"
    yield Workload(op="decode_attention", direction="forward", shape=shape, calls=calls, floor_bytes=floor)


def page_writes(slots: int, key_heads: int, width: int) -> Iterator[Workload]:
    """Two rows a slot are read and written."""
    k_pages, v_pages, table, lengths = make_pages(slots, 3 * PAGE_TOKENS, key_heads, width)
    k, v = draw(slots, key_heads, width), draw(slots, key_heads, width)
    place = table[:, 2].long(), torch.full((slots,), PAGE_TOKENS - 1)

    def write(implementation) -> tuple[Tensor, Tensor]:
        implementation.forward(k, v, k_pages, v_pages, table, lengths)
        return k_pages[place], v_pages[place]

    calls = each(ours("write_pages", compiled=False), write)
    floor = 4 * slots * key_heads * width * BYTES
    yield Workload(
        op="write_pages",
        direction="forward",
        shape=f"{slots}x{key_heads}x{width}",
        calls=calls,
        floor_bytes=floor,
    )


def token_draws(slots: int, vocabulary: int) -> Iterator[Workload]:
    """Logits are read once. PyTorch's own draws others, so that nothing can be compared with it."""
    logits, temperature = draw(slots, vocabulary, scale=3.0), torch.full((slots,), 0.8)
    seeds, positions = torch.arange(slots), torch.arange(slots) * 1000
    calls = each(
        ours("token_sampler", compiled=False), lambda i: i.forward(logits, temperature, seeds, positions)
    )

    def stock() -> tuple[Tensor, ...]:
        logprobs = (logits.float() / temperature[:, None]).log_softmax(-1)
        token = torch.multinomial(logprobs.exp(), 1)
        return (token, logprobs.gather(1, token))[:0]

    calls["torch"] = stock
    floor = slots * vocabulary * BYTES
    yield Workload(
        op="token_sampler", direction="forward", shape=f"{slots}x{vocabulary}", calls=calls, floor_bytes=floor
    )


def wide_rows(rows: int, inputs: int, sizes: tuple[int, ...], rank: int = 16) -> Iterator[Workload]:
    """The weights of linears that read the same rows are read once; `torch` multiplies by one after another."""
    weights, outputs = [draw(size, inputs) for size in sizes], sum(sizes)
    x, add = draw(rows, inputs), draw(rows, outputs)
    given = {"a": draw(len(sizes) * rank, inputs), "b": draw(outputs, rank), "add": add}
    calls = each(ours("few_rows", compiled=False), lambda i: (i.forward(x, weights, **given),))
    floor = BYTES * (inputs * outputs + rows * (inputs + 2 * outputs))
    shape = f"{rows}x{inputs}->{sizes} r{rank}"
    yield Workload(op="few_rows", direction="forward", shape=shape, calls=calls, floor_bytes=floor)


def few_rows(rows: int, inputs: int, outputs: int, rank: int = 16) -> Iterator[Workload]:
    """Packed weights are read once; `torch` multiplies by the weight opened beforehand, 2 bytes an element."""
    functions = peer("bitsandbytes", "functional")
    if functions is None:
        return
    packed, state = functions.quantize_4bit(draw(outputs, inputs), quant_type="nf4", compress_statistics=True)
    weight, x = Nf4.of(state, packed), draw(rows, inputs)
    u, b = draw(rows, rank), draw(outputs, rank)
    opened = functions.dequantize_4bit(packed, state)
    calls = each(
        ours("nf4_few_rows", compiled=False), lambda i: (i.forward(x, weight, tail=(u, b) if rank else None),)
    )
    calls["torch"] = lambda: (torch.mm(x, opened.T).addmm_(u, b.T) if rank else torch.mm(x, opened.T),)
    calls["bitsandbytes"] = stock_4bit(x, packed, state, (u, b) if rank else None)
    elements = inputs * outputs
    floor = elements // 2 + elements // 64 + rows * (inputs + outputs) * BYTES
    shape = f"{rows}x{inputs}->{outputs}" + (f" r{rank}" if rank else "")
    yield Workload(op="nf4_few_rows", direction="forward", shape=shape, calls=calls, floor_bytes=floor)


def stock_4bit(x: Tensor, packed: Tensor, state, tail: tuple[Tensor, Tensor] | None) -> Call:
    """bitsandbytes' own product of few rows, with the tail added by PyTorch."""
    nested = state.state2

    def multiply() -> tuple[Tensor]:
        y = torch.ops.bitsandbytes.gemm_4bit(
            x, packed.t(), state.shape, nested.absmax, state.blocksize, "nf4", None, state.absmax, nested.code,
            state.offset,
        )  # fmt: skip
        return (y if tail is None else y.addmm_(tail[0], tail[1].T),)

    return multiply
