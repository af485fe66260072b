"""Rotary positions: the numbers of transformers' own models, gradients against autograd, and what is left untouched."""

from __future__ import annotations

import importlib

import pytest
import torch
from studio_kernels import rope
from studio_kernels.rms_norm import CAST_THEN_SCALE, SCALE_THEN_CAST
from studio_kernels.rope import ROPE

TOKENS, QUERIES, KEYS, WIDTH = 11, 4, 2, 32
HEADS = QUERIES + 2 * KEYS
POSITIONS = torch.tensor([0, 1, 2, 3, 0, 1, 0, 5, 63, 2, 7], dtype=torch.int32)
"""Four documents, the third of one token."""


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tables(rotary_dim: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(64)[:, None] * 1e4 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim).repeat(2)
    return 1.1 * angles.cos(), 1.1 * angles.sin()


def compose(qkv, cos, sin, norms=None, eps=0.0, offset=0, interleaved=False):
    """Query and key as a plain formula that autograd can follow, (T, nq + nk, d)."""
    x = qkv[:, : (QUERIES + KEYS) * WIDTH].unflatten(-1, (QUERIES + KEYS, WIDTH))
    if norms is not None:
        weights = torch.cat([norms[0].expand(QUERIES, -1), norms[1].expand(KEYS, -1)]) + offset
        x = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weights
    cos, sin = (table[POSITIONS.long()].double().unsqueeze(1) for table in (cos, sin))
    turned, rest = x.split([cos.shape[-1], WIDTH - cos.shape[-1]], dim=-1)
    if interleaved:
        cos, sin = (table[..., : table.shape[-1] // 2].repeat_interleave(2, -1) for table in (cos, sin))
        turning = torch.stack([-turned[..., 1::2], turned[..., ::2]], dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        turning = torch.cat([-b, a], dim=-1)
    return torch.cat([turned * cos + turning * sin, rest], dim=-1)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("rotary_dim", [WIDTH, 12])
@pytest.mark.parametrize("offset", [None, 0, 1], ids=["plain", "norms", "norms-offset"])
def test_forward_and_backward_equal_autograd_in_float64(offset, rotary_dim, interleaved):
    cos, sin = tables(rotary_dim)
    qkv = draw(TOKENS, HEADS * WIDTH).requires_grad_()
    norms = None if offset is None else [draw(WIDTH, seed=seed).requires_grad_() for seed in (1, 2)]
    expected = compose(qkv, cos, sin, norms, eps=1e-3, offset=offset or 0, interleaved=interleaved)
    dq, dk, dv = (draw(TOKENS, n, WIDTH, seed=n + 5) for n in (QUERIES, KEYS, 1))
    dv = dv.expand(-1, KEYS, -1)
    leaves = [qkv, *(norms or [])]
    gradients = torch.autograd.grad(expected, leaves, torch.cat([dq, dk], dim=1))
    expected_gradient = gradients[0].clone()
    expected_gradient[:, -KEYS * WIDTH :] = dv.flatten(1)

    sizes = (cos, sin, POSITIONS, QUERIES, KEYS, WIDTH)
    raw, options, sums = qkv.detach().clone(), {"interleaved": interleaved}, None
    if norms is not None:
        weights = {"query_norm": norms[0], "key_norm": norms[1]}
        options |= weights | dict(eps=1e-3, offset=offset, order=SCALE_THEN_CAST)
        sums = torch.full((WIDTH,), 3.0).double(), torch.zeros(WIDTH).double()
    rotated = rope.reference_forward(raw, *sizes, **options)
    assert not rotated.requires_grad
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(
        rotated[:, : (QUERIES + KEYS) * WIDTH], expected.detach().flatten(1), rtol=1e-12, atol=1e-12
    )
    packed = torch.full((TOKENS, HEADS * WIDTH + 64), 9.0).double()
    back = options | {"qkv": raw, "norm_gradients": sums}
    rope.reference_backward(dq, dk, dv, *sizes, out=packed, **back)
    torch.testing.assert_close(packed[:, : HEADS * WIDTH], expected_gradient, **close)
    assert (packed[:, HEADS * WIDTH :] == 9.0).all()
    if norms is not None:
        torch.testing.assert_close(sums[0] - 3.0, gradients[1], **close)
        torch.testing.assert_close(sums[1], gradients[2], **close)


FAMILIES = {
    "llama": ("LlamaConfig", "LlamaRotaryEmbedding", None, {}),
    "phi3": ("Phi3Config", "Phi3RotaryEmbedding", None, {"partial_rotary_factor": 0.75, "pad_token_id": 0}),
    "qwen3": ("Qwen3Config", "Qwen3RotaryEmbedding", "Qwen3RMSNorm", {}),
    "gemma3": ("Gemma3TextConfig", "Gemma3RotaryEmbedding", "Gemma3RMSNorm", {}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers_in_float32(family):
    """Its rotary embedding, its norms of queries and keys and its `apply_rotary_pos_emb`, forward and gradients."""
    config_name, rotary_name, norm_name, settings = FAMILIES[family]
    stock = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    config = getattr(importlib.import_module("transformers"), config_name)(
        hidden_size=QUERIES * WIDTH,
        head_dim=WIDTH,
        num_attention_heads=QUERIES,
        num_key_value_heads=KEYS,
        **settings,
    )
    kind = {"layer_type": "full_attention"} if family == "gemma3" else {}
    cos, sin = getattr(stock, rotary_name)(config)(torch.zeros(1), torch.arange(64)[None], **kind)
    cos, sin = cos[0], sin[0]
    assert cos.shape[-1] == (24 if family == "phi3" else WIDTH)
    qkv = draw(TOKENS, HEADS * WIDTH, dtype=torch.float32).requires_grad_()
    q, k, v = (
        part.unflatten(-1, (-1, WIDTH))
        for part in qkv.split([n * WIDTH for n in (QUERIES, KEYS, KEYS)], dim=-1)
    )
    options = {}
    if norm_name:
        norms = [getattr(stock, norm_name)(WIDTH, eps=1e-5) for _ in range(2)]
        for seed, norm in enumerate(norms):
            norm.weight.data = draw(WIDTH, dtype=torch.float32, seed=seed)
        q, k = norms[0](q), norms[1](k)
        gemma = {"offset": 1, "order": SCALE_THEN_CAST} if family == "gemma3" else {"order": CAST_THEN_SCALE}
        options = dict(query_norm=norms[0].weight, key_norm=norms[1].weight, eps=1e-5, **gemma)
    q, k = stock.apply_rotary_pos_emb(
        q.transpose(0, 1), k.transpose(0, 1), cos[POSITIONS.long()], sin[POSITIONS.long()], unsqueeze_dim=0
    )
    expected = torch.cat([q, k, v.transpose(0, 1)]).transpose(0, 1)
    upstream = draw(TOKENS, HEADS, WIDTH, dtype=torch.float32, seed=9)
    trained = [option for option in options.values() if isinstance(option, torch.Tensor)]
    expected_gradients = torch.autograd.grad(expected, [qkv, *trained], upstream)

    sizes = (cos, sin, POSITIONS, QUERIES, KEYS, WIDTH)
    raw = qkv.detach().clone()
    rotated = rope.reference_forward(raw, *sizes, **options)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(
        rotated[:, : (QUERIES + KEYS) * WIDTH], expected.detach()[:, : QUERIES + KEYS].flatten(1), **close
    )
    sums = torch.zeros(WIDTH), torch.zeros(WIDTH)
    back = options | {"qkv": raw, "norm_gradients": sums} if norm_name else {}
    parts = upstream.split([QUERIES, KEYS, KEYS], dim=1)
    packed = rope.reference_backward(*parts, *sizes, out=torch.empty_like(raw), **back)
    torch.testing.assert_close(packed, expected_gradients[0], **close)
    for ours, theirs in zip(sums, expected_gradients[1:], strict=bool(norm_name)):
        torch.testing.assert_close(ours, theirs, **close)


@pytest.fixture
def call():
    """Tables, positions and sizes, and a projection with 64 columns more than its heads take."""
    return (*tables(12), POSITIONS, QUERIES, KEYS, WIDTH), draw(
        TOKENS, HEADS * WIDTH + 64, dtype=torch.float32
    )


def test_without_norms_only_rotated_columns_are_touched(call):
    sizes, wide = call
    before = wide.clone()
    assert rope.reference_forward(wide, *sizes) is wide
    heads = (wide == before)[:, : HEADS * WIDTH].unflatten(-1, (HEADS, WIDTH))
    rotated = POSITIONS > 0
    assert not heads[rotated, : QUERIES + KEYS, :12].any()
    assert heads[:, : QUERIES + KEYS, 12:].all() and heads[:, QUERIES + KEYS :].all()
    assert torch.equal(wide[:, HEADS * WIDTH :], before[:, HEADS * WIDTH :])


def test_norms_leave_the_projection_raw(call):
    sizes, wide = call
    before, weight = wide.clone(), torch.ones(WIDTH)
    out = torch.full((TOKENS, HEADS * WIDTH), 9.0)
    options = {"query_norm": weight, "key_norm": weight, "eps": 1e-6}
    assert rope.reference_forward(wide, *sizes, out=out, **options) is out
    assert torch.equal(wide, before) and (out[:, (QUERIES + KEYS) * WIDTH :] == 9.0).all()
    assert torch.equal(rope.reference_forward(wide, *sizes, **options), out[:, : (QUERIES + KEYS) * WIDTH])


def test_documents_in_another_order_give_the_same_bits(call):
    sizes, wide = call
    order = torch.tensor([6, *range(7, 11), *range(6)])
    moved = rope.reference_forward(wide[order].clone(), *sizes[:2], POSITIONS[order], *sizes[3:])
    assert torch.equal(rope.reference_forward(wide, *sizes)[order], moved)


def backward_run(implementation, device, dtype):
    """A function (in place) -> packed gradient and norms' gradients, from gradients as attention returns them."""
    sizes = tuple(
        each.to(device) if isinstance(each, torch.Tensor) else each for each in (*tables(), POSITIONS)
    )
    sizes = (*sizes, QUERIES, KEYS, WIDTH)
    raw = draw(TOKENS, HEADS * WIDTH, dtype=dtype).to(device)
    gradients = [
        draw(n, TOKENS, WIDTH, dtype=dtype, seed=n).to(device).transpose(0, 1) for n in (QUERIES, KEYS, KEYS)
    ]
    weights = {
        "query_norm": draw(WIDTH, dtype=dtype).to(device),
        "key_norm": draw(WIDTH, dtype=dtype).to(device),
    }

    def run(in_place: bool) -> tuple[torch.Tensor, ...]:
        qkv = raw.clone()
        out = qkv if in_place else torch.empty_like(raw)
        sums = torch.zeros(WIDTH, device=device), torch.zeros(WIDTH, device=device)
        implementation.backward(
            *gradients, *sizes, qkv=qkv, eps=1e-6, out=out, norm_gradients=sums, **weights
        )
        assert torch.equal(out[:, -KEYS * WIDTH :], gradients[2].flatten(1))
        return out, *sums

    return run


def test_the_gradient_may_take_the_place_of_the_projection():
    run = backward_run(ROPE.reference, "cpu", torch.float32)
    assert all(torch.equal(ours, apart) for ours, apart in zip(run(True), run(False), strict=True))


@pytest.mark.parametrize("norms", [False, True])
def test_one_launch_each_way(monkeypatch, norms):
    launched = []

    class Counter:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launched.append(grid)

    monkeypatch.setattr(rope, "_forward_kernel", Counter())
    monkeypatch.setattr(rope, "_backward_kernel", Counter())
    rope.sample(rows=300, width=4096, dtype=torch.bfloat16, device="cpu", norms=norms)(ROPE.triton)
    # 48 heads to rotate, 64 to pack, 16 a program; with norms' gradients 128 programs share the tokens, 3 each.
    assert launched == [(300, 3), (100 if norms else 300, 4)]


@pytest.mark.parametrize(
    ("heads", "head_dim", "rotary_dim", "group"),
    [(48, 128, 128, 16), (40, 128, 128, 8), (1, 64, 16, 1), (12, 256, 256, 4)],
)
def test_block_shape(heads, head_dim, rotary_dim, group):
    block = rope.block_shape(heads, head_dim, rotary_dim)
    assert block["HEADS"] == group
    assert block["HALF_BLOCK"] * 2 >= rotary_dim and block["REST_BLOCK"] >= head_dim - rotary_dim
    assert block["num_warps"] in (1, 2, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_kernel_gives_equal_bits_in_place_and_apart(dtype):
    run = backward_run(ROPE.triton, "cuda", dtype)
    first = run(False)
    for in_place in (True, False, True):
        assert all(torch.equal(now, before) for now, before in zip(run(in_place), first, strict=True))


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31():
    width = 128
    rows, columns = 2**31 // (4 * width) + 3, 4 * width
    qkv = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    qkv[-1] = torch.randn(columns)
    cos, sin = (table.cuda() for table in tables(width))
    positions = torch.full((rows,), 7, dtype=torch.int32, device="cuda")
    tail = qkv[-1:].clone()
    ROPE.triton.forward(qkv, cos, sin, positions, 2, 1, width)
    torch.testing.assert_close(qkv[-1:], ROPE.reference.forward(tail, cos, sin, positions[:1], 2, 1, width))
    # Heads first: a head's stride is that of all tokens.
    dq = qkv.view(4, rows, width).transpose(0, 1)[:, :2]
    packed = torch.empty_like(qkv)
    ROPE.triton.backward(dq, dq[:, :1], dq[:, 1:], cos, sin, positions, 2, 1, width, out=packed)
    expected = torch.empty_like(tail)
    ends = dq[-1:], dq[-1:, :1], dq[-1:, 1:], cos, sin, positions[:1], 2, 1, width
    torch.testing.assert_close(packed[-1:], ROPE.reference.backward(*ends, out=expected))
