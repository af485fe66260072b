"""Attention within packed documents: every backend that runs here against dense float64, forward and gradients."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import attention, attention_backends, attention_reference
from studio_kernels.attention import Documents, Heads, choose_attention

PACKED = (5, 1, 1, 37, 20)
EQUAL = (24, 24, 24)
SEED_BYTES = 32
"""The libraries' kernels keep seed and offset of a dropout that is not there, 16 or 24 bytes."""
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def make_heads(**changes) -> Heads:
    defaults = {"head_dim": 16, "query_heads": 4, "key_heads": 2, "scale": 0.3}
    return Heads(**defaults | changes)


def draw(lengths, heads: Heads, dtype: torch.dtype, device: str = "cpu"):
    """q, k, v as slices of one matrix with a tail, and dout; what lies in the tail is NaN."""
    tokens, generator = sum(lengths), torch.Generator().manual_seed(1)
    columns = (heads.query_heads + 2 * heads.key_heads) * heads.head_dim
    qkv = torch.randn(tokens, columns + 64, generator=generator)
    qkv[:, columns:] = float("nan")
    dout = torch.randn(tokens, heads.query_heads, heads.head_dim, generator=generator).to(device, dtype)
    parts = qkv.to(device, dtype)[:, :columns].unflatten(1, (-1, heads.head_dim))
    return dout, *parts.split((heads.query_heads, heads.key_heads, heads.key_heads), 1)


def dense(dout, q, k, v, lengths, heads: Heads, sinks: torch.Tensor | None = None):
    """out, dq, dk, dv (and dsinks) in float64 by autograd over the composed form with one mask of T x T.

    Sinks are a last column of all scores, without a value.
    """
    given = (q, k, v) if sinks is None else (q, k, v, sinks)
    q, k, v, *sink = found = [x.detach().double().cpu().requires_grad_() for x in given]
    shared = heads.query_heads // heads.key_heads
    keys, values = (x.repeat_interleave(shared, 1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, keys) * heads.scale
    if heads.softcap:
        scores = heads.softcap * torch.tanh(scores / heads.softcap)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(sum(lengths))
    seen = (document[:, None] == document) & (place <= place[:, None])
    if heads.window:
        seen &= place > place[:, None] - heads.window
    columns = [
        scores.masked_fill(~seen, float("-inf")),
        *(x[:, None, None].expand(-1, len(q), 1) for x in sink),
    ]
    shares = torch.softmax(torch.cat(columns, -1), -1)[..., : len(k)]
    out = torch.einsum("hij,jhd->ihd", shares, values)
    return out.detach(), *torch.autograd.grad(out, found, dout.double().cpu())


def run(backend, dout, q, k, v, documents: Documents, heads: Heads):
    with torch.no_grad():
        out, saved = backend.forward(q, k, v, documents, heads)
        gradients = backend.backward(dout, q, k, v, out, saved, documents, heads)
    return (out, *gradients), saved


def check(
    backend, lengths, heads: Heads, dtype: torch.dtype, device: str = "cpu", tolerance: float = 0.0
) -> None:
    dout, q, k, v = draw(lengths, heads, dtype, device)
    results, saved = run(backend, dout, q, k, v, Documents.of(lengths, device), heads)
    for ours, like, exact in zip(results, (q, q, k, v), dense(dout, q, k, v, lengths, heads), strict=True):
        assert ours.shape == like.shape and ours.dtype == dtype and ours.stride(-1) == 1
        error = (ours.double().cpu() - exact).abs().max() / exact.abs().max().clamp(min=1.0)
        assert error <= (tolerance or TOLERANCE[dtype])
    assert sum(each.nbytes for each in saved) <= saved_limit(lengths, heads, dtype)


def test_keys_with_a_large_bias_keep_the_gradient_of_queries():
    """Qwen2.5's are so: scores are large together, and shares of exp(score - log-sum) were off by that (dq by 1.1)."""
    lengths, heads = (40, 24), make_heads()
    dout, q, k, v = draw(lengths, heads, torch.float32)
    q, k = q + 60, k + 60
    results, _ = run(attention_backends.MATH, dout, q, k, v, Documents.of(lengths, "cpu"), heads)
    for ours, exact in zip(results, dense(dout, q, k, v, lengths, heads), strict=True):
        assert (ours.double() - exact).norm() <= 1e-3 * exact.norm()


def saved_limit(lengths, heads: Heads, dtype: torch.dtype) -> int:
    return sum(lengths) * heads.query_heads * (8 if dtype is torch.float64 else 4) + SEED_BYTES


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("lengths", [PACKED, EQUAL, (1,), (1, 1), (61,)], ids=str)
@pytest.mark.parametrize(
    "backend", [attention_backends.MATH, attention_backends.CPU], ids=lambda each: each.name
)
def test_every_backend_of_the_processor(backend, lengths, dtype):
    check(backend, lengths, make_heads(), dtype)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 7},
        {"window": 1},
        {"softcap": 0.8},
        {"window": 16, "softcap": 2.0},
        {"key_heads": 4},
        {"key_heads": 1},
        {"query_heads": 6, "key_heads": 2, "head_dim": 24},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize("lengths", [PACKED, EQUAL], ids=str)
def test_the_composed_form_block_by_block(monkeypatch, changes, rows, lengths):
    monkeypatch.setattr(attention_reference, "LEAST_ROWS", rows)
    monkeypatch.setattr(attention_reference, "SCORES_BYTES", 0)
    check(attention_backends.MATH, lengths, make_heads(**changes), torch.float64)


def test_no_block_of_scores_is_larger_than_its_limit(monkeypatch):
    monkeypatch.setattr(attention_reference, "SCORES_BYTES", 1 << 20)
    monkeypatch.setattr(
        attention_reference, "_product", lambda a, b: sizes.append(a.shape[0] * a.shape[1] * b.shape[2])
    )
    sizes: list[int] = []
    heads = make_heads()
    documents = Documents.of((3000,), "cpu")
    q = torch.zeros(3000, heads.query_heads, heads.head_dim)
    for some, seen in attention_reference._blocks(1, slice(0, documents.tokens), heads):
        queries = attention_reference._queries(q, 1, some, heads)
        keys = torch.zeros(heads.key_heads, seen.stop - seen.start, heads.head_dim)
        attention_reference._product(queries, keys.mT)
    assert 1 < len(sizes) and max(sizes) * 4 <= 1 << 20


def test_documents_know_their_places():
    documents = Documents.of([3, 0, 1, 2], "cpu")
    assert documents.lengths == (3, 1, 2) and documents.uniform is None and documents.longest == 3
    assert documents.starts.tolist() == [0, 3, 4, 6] and documents.starts.dtype is torch.int32
    assert documents.positions.tolist() == [0, 1, 2, 0, 0, 1] and documents.positions.dtype is torch.int32
    assert documents.tokens == 6
    assert Documents.of([4, 4], "cpu").uniform == 4
    with pytest.raises(ValueError, match="no tokens"):
        Documents.of([0], "cpu")


@pytest.mark.parametrize(
    ("changes", "name", "word"),
    [
        ({}, "cpu", "right numbers"),
        ({"window": 8}, "math", "window"),
        ({"softcap": 50.0}, "math", "bound"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_choice_on_the_processor(changes, name, word, dtype):
    facts = {"head_dim": 16, "query_heads": 4, "key_heads": 2, "scale": 0.25} | changes
    chosen = choose_attention(device="cpu", dtype=dtype, **facts)
    assert chosen.name == name and word in chosen.reason and chosen.equal is None
    assert chosen.saved_bytes_a_token == 4 * (8 if dtype is torch.float64 else 4)
    dout, q, k, v = draw(PACKED, chosen.heads, dtype)
    documents = Documents.of(PACKED, "cpu")
    out, saved = chosen.forward(q, k, v, documents)
    assert len(chosen.backward(dout, q, k, v, out, saved, documents)) == 3


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "ok"),
    [
        ((8, 0), torch.bfloat16, 256, True),
        ((12, 0), torch.float16, 80, True),
        ((9, 0), torch.bfloat16, 520, False),
        ((7, 5), torch.float16, 64, False),
        ((9, 0), torch.float32, 64, False),
    ],
)
def test_our_kernels_take_capped_scores(capability, dtype, head_dim, ok):
    heads = make_heads(softcap=50.0, head_dim=head_dim)
    assert attention.supports(attention_backends.TRITON, "cuda", capability, dtype, heads).ok is ok
    assert not attention.supports(attention_backends.TRITON, "cpu", None, dtype, heads).ok


def test_our_kernels_are_asked_only_where_they_may_be_and_after_the_libraries(monkeypatch):
    tried: list[str] = []

    def try_out(backend, *_):
        tried.append(backend.name)
        return attention.Support(backend.name != "flash", f"{backend.name} was tried.")

    monkeypatch.setattr(attention, "try_out", try_out)
    facts = {"head_dim": 64, "query_heads": 4, "key_heads": 2, "scale": 0.25}
    facts |= {"device": "cuda", "dtype": torch.bfloat16, "capability": (8, 6)}
    assert choose_attention(**facts, triton=True).packed is attention_backends.EFFICIENT
    assert choose_attention(**facts, softcap=50.0).packed is attention_backends.MATH
    chosen = choose_attention(**facts, softcap=50.0, triton=True)
    assert chosen.packed is attention_backends.TRITON and chosen.equal is None
    assert tried == ["flash", "efficient", "cudnn", "triton"]
    composed = chosen.without_triton()
    assert composed.packed is attention_backends.MATH and composed.heads is chosen.heads
    assert composed.without_triton() is composed


def test_a_backend_that_fails_or_lies_is_passed_over(monkeypatch):
    def refuse(*_):
        raise RuntimeError("No available kernel.\nTraceback")

    facts = {
        "device": "cpu",
        "dtype": torch.float32,
        "head_dim": 16,
        "query_heads": 2,
        "key_heads": 2,
        "scale": 0.25,
    }
    broken = attention_backends.AttentionBackend(name="cpu", forward=refuse, backward=refuse)
    monkeypatch.setattr(attention, "CPU", broken)
    chosen = choose_attention(**facts)
    assert chosen.name == "math" and "cpu failed here: No available kernel." in chosen.reason
    lying = attention_backends.AttentionBackend(
        name="cpu",
        forward=lambda *inputs: (attention_reference.forward(*inputs)[0] * 1.1, ()),
        backward=lambda dout, q, k, v, *_: (q, k, v),
    )
    monkeypatch.setattr(attention, "CPU", lying)
    assert "wrong numbers" in choose_attention(**facts).reason


def test_an_operator_of_other_arguments_is_not_called():
    heads = make_heads()
    changed = attention_backends.AttentionBackend(
        name="flash", forward=None, backward=None, operators=(("_flash_attention_forward", 10, ("no_such",)),)
    )
    support = attention.supports(changed, "cuda", (9, 0), torch.bfloat16, heads)
    assert not support.ok and "other arguments" in support.reason
    absent = attention_backends.AttentionBackend(
        name="new", forward=None, backward=None, operators=(("_no_such", 1, ()),)
    )
    assert "no _no_such" in attention.supports(absent, "cuda", (9, 0), torch.bfloat16, heads).reason


@pytest.mark.parametrize("backend", ["CUDNN", "FLASH", "EFFICIENT"])
def test_this_pytorch_has_the_operators_as_they_are_called(backend):
    support = attention.supports(
        getattr(attention_backends, backend), "cuda", (9, 0), torch.bfloat16, make_heads(head_dim=128)
    )
    assert support.ok, support.reason


@pytest.mark.parametrize("backend", ["CUDNN", "FLASH", "EFFICIENT"])
@pytest.mark.parametrize("window", [0, 8])
def test_operators_take_the_calls_and_give_the_shapes_of_the_decoder(backend, window):
    """Without a GPU, by PyTorch's own shape functions."""
    heads = make_heads(window=window)
    dout, q, k, v = draw(EQUAL, heads, torch.bfloat16, "meta")
    documents, each = Documents.of(EQUAL, "meta"), getattr(attention_backends, backend)
    out, saved = each.forward(q, k, v, documents, heads)
    assert out.shape == q.shape and out.is_contiguous()
    assert saved[0].numel() == sum(EQUAL) * heads.query_heads
    if backend == "EFFICIENT":
        return  # PyTorch's shape function for its backward pass takes other arguments than the operator itself
    for ours, like in zip(each.backward(dout, q, k, v, out, saved, documents, heads), (q, k, v), strict=True):
        assert ours.shape == like.shape and ours.dtype == like.dtype and ours.stride(-1) == 1


@pytest.mark.parametrize(
    ("backend", "capability", "dtype", "ok"),
    [
        ("FLASH", (7, 5), torch.float16, False),
        ("FLASH", (8, 0), torch.float32, False),
        ("CUDNN", (8, 6), torch.float16, True),
        ("EFFICIENT", (7, 5), torch.float16, True),
        ("EFFICIENT", (7, 5), torch.bfloat16, False),
        ("EFFICIENT", (8, 0), torch.float32, True),
    ],
)
def test_support_by_card(backend, capability, dtype, ok):
    each = getattr(attention_backends, backend)
    assert attention.supports(each, "cuda", capability, dtype, make_heads()).ok is ok


def test_equal_documents_take_the_other_backend():
    heads = make_heads(window=200)
    chosen = attention.Attention(
        heads=heads,
        packed=attention_backends.FLASH,
        equal=attention_backends.CUDNN,
        reason="",
        saved_bytes_a_token=16,
    )
    assert chosen.name == "cudnn+flash"
    for lengths, name in (
        ((128, 128), "cudnn"),
        ((128, 127), "flash"),
        ((100, 100), "flash"),
        ((256,), "flash"),
    ):
        assert chosen.backend(Documents.of(lengths, "cpu")).name == name, lengths


def bounds(lengths, empty: int, device: str) -> Documents:
    """Documents as a captured graph knows them: some empty ones at the end, and a bound of the longest."""
    exact = Documents.of(lengths, device)
    starts = torch.cat((exact.starts, exact.starts[-1:].repeat(empty)))
    longest = 1 << (exact.longest - 1).bit_length()
    documents = len(lengths) + empty
    return Documents(
        lengths=(longest,) * documents,
        starts=starts,
        positions=exact.positions,
        uniform=None,
        longest=longest,
    )


@pytest.mark.parametrize(
    "backend", [attention_backends.MATH, attention_backends.CPU], ids=lambda each: each.name
)
def test_bounds_are_refused_where_exact_lengths_are_needed(backend):
    dout, q, k, v = draw(PACKED, make_heads(), torch.float32)
    with pytest.raises(ValueError, match="do not make up"):
        backend.forward(q, k, v, bounds(PACKED, 3, "cpu"), make_heads())
