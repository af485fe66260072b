"""Attention on a real GPU: every backend against dense float64, the choice, graphs, and that nothing waits."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import attention, attention_backends, attention_reference
from studio_kernels.attention import Documents, choose_attention

from tests.kernels.test_attention import bounds, check, draw, make_heads, run

pytestmark = pytest.mark.gpu

GPU_CASES = [
    {},
    {"window": 37},
    {"window": 1},
    {"key_heads": 8},
    {"key_heads": 1},
    {"head_dim": 64},
    {"head_dim": 96},
    {"head_dim": 256},
    {"softcap": 3.0},
    {"window": 100, "softcap": 3.0},
]
GPU_LENGTHS = [(200, 1, 1, 130, 300), (1, 1, 1), (1,), (384, 384), (1000,)]


@pytest.mark.parametrize("lengths", GPU_LENGTHS, ids=str)
@pytest.mark.parametrize("changes", GPU_CASES, ids=str)
@pytest.mark.parametrize("backend", ["FLASH", "EFFICIENT", "TRITON", "MATH"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_every_packed_backend_of_the_gpu(backend, dtype, changes, lengths):
    heads = make_heads(**{"head_dim": 128, "query_heads": 8, "scale": 0.1} | changes)
    each = getattr(attention_backends, backend)
    support = attention.supports(each, "cuda", torch.cuda.get_device_capability(), dtype, heads)
    if not support.ok:  # these are decided before anything runs, and tested above
        assert dtype is torch.float32 or heads.softcap
        return
    check(each, lengths, heads, dtype, "cuda", {torch.float32: 3e-3}.get(dtype, 0.0))


@pytest.mark.parametrize("lengths", [(128,), (256, 256, 256), (1024,)], ids=str)
@pytest.mark.parametrize("changes", [{}, {"key_heads": 8}, {"head_dim": 64}, {"head_dim": 96}], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_cudnn(dtype, changes, lengths):
    heads = make_heads(**{"head_dim": 128, "query_heads": 8, "scale": 0.1} | changes)
    check(attention_backends.CUDNN, lengths, heads, dtype, "cuda")


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("window", [0, 50])
def test_choice_on_the_gpu(head_dim, window):
    """Equal and packed forms of the same tokens agree, whatever was chosen."""
    facts = {
        "head_dim": head_dim,
        "query_heads": 8,
        "key_heads": 2,
        "scale": head_dim**-0.5,
        "window": window,
    }
    chosen = choose_attention(device="cuda", dtype=torch.bfloat16, **facts)
    assert chosen.packed is not attention_backends.MATH, chosen.reason
    if torch.cuda.get_device_capability() == (9, 0) and head_dim <= 128:
        assert chosen.equal is attention_backends.CUDNN, chosen.reason
    lengths = (256, 256)
    dout, q, k, v = draw(lengths, chosen.heads, torch.bfloat16, "cuda")
    documents = Documents.of(lengths, "cuda")
    with torch.no_grad():
        out, saved = chosen.forward(q, k, v, documents)
        results = (out, *chosen.backward(dout, q, k, v, out, saved, documents))
    packed, _ = run(chosen.packed, dout, q, k, v, documents, chosen.heads)
    composed, _ = run(attention_backends.MATH, dout, q, k, v, documents, chosen.heads)
    for ours, others, exact in zip(results, packed, composed, strict=True):
        torch.testing.assert_close(ours, others, atol=0.03, rtol=0.03)
        torch.testing.assert_close(ours, exact, atol=0.03, rtol=0.03)


def test_nothing_waits_for_the_gpu():
    heads = {"head_dim": 128, "query_heads": 8, "key_heads": 2, "scale": 0.1}
    chosen = choose_attention(device="cuda", dtype=torch.bfloat16, **heads)
    for lengths in ((256, 256), (300, 1, 211)):
        dout, q, k, v = draw(lengths, chosen.heads, torch.bfloat16, "cuda")
        documents = Documents.of(lengths, "cuda")
        ours = {attention_backends.EFFICIENT, attention_backends.TRITON, attention_backends.MATH}
        for backend in {chosen.backend(documents), *ours}:
            run(backend, dout, q, k, v, documents, chosen.heads)
            torch.cuda.set_sync_debug_mode("error")
            try:
                run(backend, dout, q, k, v, documents, chosen.heads)
            finally:
                torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("window", [0, 37])
@pytest.mark.parametrize("lengths", [(300, 1, 211, 100), (520, 100)], ids=str)
@pytest.mark.parametrize(
    "backend",
    [attention_backends.FLASH, attention_backends.EFFICIENT, attention_backends.TRITON],
    ids=lambda each: each.name,
)
def test_bounds_give_what_exact_lengths_give(backend, lengths, window):
    heads = make_heads(head_dim=64, query_heads=8, window=window)
    dout, q, k, v = draw(lengths, heads, torch.bfloat16, "cuda")
    exact, _ = run(backend, dout, q, k, v, Documents.of(lengths, "cuda"), heads)
    bounded, _ = run(backend, dout, q, k, v, bounds(lengths, 4, "cuda"), heads)
    for ours, theirs in zip(bounded, exact, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("backend", ["CUDNN", "FLASH", "EFFICIENT", "TRITON"])
def test_a_graph_replays_it_for_other_documents(backend):
    heads, each = make_heads(head_dim=64, query_heads=8), getattr(attention_backends, backend)
    first, second = ((256, 256),) * 2 if backend == "CUDNN" else ((300, 112, 100), (200, 300, 12))
    dout, q, k, v = draw(first, heads, torch.bfloat16, "cuda")
    documents = bounds(first, 0, "cuda") if backend != "CUDNN" else Documents.of(first, "cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(each, dout, q, k, v, documents, heads)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results, _ = run(each, dout, q, k, v, documents, heads)
    other = Documents.of(second, "cuda")
    documents.starts.copy_(other.starts)
    documents.positions.copy_(other.positions)
    dout.mul_(0.5)
    graph.replay()
    expected, _ = run(each, dout, q, k, v, other, heads)
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("window", [0, 4096])
def test_capped_scores_of_gemma_2_go_to_our_kernels(window):
    facts = {"head_dim": 256, "query_heads": 16, "key_heads": 8, "scale": 256**-0.5, "softcap": 50.0}
    facts |= {"device": "cuda", "dtype": torch.bfloat16, "window": window}
    chosen = choose_attention(**facts, triton=True)
    assert chosen.name == "triton", chosen.reason
    assert choose_attention(**facts).name == "math"
    lengths = (4500, 1, 600)
    dout, q, k, v = draw(lengths, chosen.heads, torch.bfloat16, "cuda")
    documents = Documents.of(lengths, "cuda")
    first, _ = run(chosen.packed, dout, q, k, v, documents, chosen.heads)
    again, _ = run(chosen.packed, dout, q, k, v, documents, chosen.heads)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    bounded, _ = run(chosen.packed, dout, q, k, v, bounds(lengths, 13, "cuda"), chosen.heads)
    assert all(torch.equal(one, other) for one, other in zip(first, bounded, strict=True))


def test_no_document_sees_another():
    heads = make_heads(head_dim=128, softcap=20.0)
    lengths = (130, 70, 300)
    dout, q, k, v = draw(lengths, heads, torch.bfloat16, "cuda")
    before, _ = run(attention_backends.TRITON, dout, q, k, v, Documents.of(lengths, "cuda"), heads)
    for x in (dout, q, k, v):
        x[130:200] = 30.0
    after, _ = run(attention_backends.TRITON, dout, q, k, v, Documents.of(lengths, "cuda"), heads)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:130], other[:130]) and torch.equal(one[200:], other[200:])
        assert not torch.equal(one[130:200], other[130:200])


def test_tiles_that_nothing_sees_are_not_read():
    heads, lengths = make_heads(head_dim=128, softcap=20.0, window=128), (256, 1024)
    dout, q, k, v = draw(lengths, heads, torch.bfloat16, "cuda")
    documents = Documents.of(lengths, "cuda")
    before, _ = run(attention_backends.TRITON, dout, q, k, v, documents, heads)
    k[:256] = v[:256] = float("nan")
    after, _ = run(attention_backends.TRITON, dout, q, k, v, documents, heads)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[256:], other[256:])
    k[:512] = v[:512] = float("nan")  # from 768 on nothing is seen of it
    after, _ = run(attention_backends.TRITON, dout, q, k, v, documents, heads)
    assert torch.equal(before[0][768:], after[0][768:]) and torch.equal(before[1][768:], after[1][768:])


def test_long_rows_of_composed_attention_fit_in_blocks():
    """32,768 tokens of Gemma 2: one head's scores alone would be 4 GiB."""
    heads = make_heads(head_dim=256, query_heads=16, key_heads=8, scale=0.0625, softcap=50.0)
    lengths = (32768,)
    dout, q, k, v = draw(lengths, heads, torch.bfloat16, "cuda")
    documents = Documents.of(lengths, "cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    composed, _ = run(attention_backends.MATH, dout, q, k, v, documents, heads)
    results = sum(x.numel() * x.element_size() for x in composed)
    wide_sums = 2 * 4 * k.numel()
    limit = 2 * results + wide_sums + 6 * attention_reference.SCORES_BYTES
    assert torch.cuda.max_memory_allocated() - before < limit + (64 << 20)
    fused, _ = run(attention_backends.TRITON, dout, q, k, v, documents, heads)
    for ours, theirs in zip(fused, composed, strict=True):
        error = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
        assert error < attention.LIMITS[torch.bfloat16]
