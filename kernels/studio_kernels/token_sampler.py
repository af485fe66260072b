"""Draws the next token of every slot from its logits, with the logarithm of its probability.

    token = argmax_i (z_i - log e_i)        z = logits / T        e_i = -log(1 - u_i)        T = 0: argmax_i logits_i
    logprob = z_token - log sum_i exp(z_i)        T = 0: of the logits themselves

which draws from softmax(z) (Gumbel-max). u_i is a function of seed, position and i alone: another number of slots, or
another place among them, draws the same token. Philox4x32-10 (see `dropout`) with the key (seed, seed >> 32) and the
counter (512 floor(i / 2048) + i mod 512, position, position >> 32, STREAM) gives four 32-bit words; columns i, i + 512,
i + 1024 and i + 1536 of a span of 2048 take one each, u = (word + 0.5) / 2^32. Of equals the lowest index wins. A logit
of -inf is never drawn; NaN is not looked for.

A span of the vocabulary is a program's, which keeps its best token and its highest logit with the sum over that; a
second kernel joins the spans. Source: Maddison et al. 2014, arXiv:1411.0030; Salmon et al. 2011.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.dropout import WORD, philox
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LANES, WORDS = 512, 4
SPAN = LANES * WORDS
STREAM = 0x53414D50
"""Keeps these numbers apart from those of dropout, whose streams are layers."""
SMALL = 2.0**-8
"""Below it -log(1 - u) is taken as u + u^2 / 2 + u^3 / 3: in float32 1 - u has lost the digits that matter, those of
unlikely tokens. The rest is u^4 / 4, 2e-8 of u."""
MAX_VOCABULARY = 2**22


def draw_uniform(
    seeds: Tensor, positions: Tensor, vocabulary: int, dtype: torch.dtype
) -> Tensor:  # (slots, vocabulary)
    """u of every token of the slots with these seeds and positions (slots,) int64, rounded to `dtype`."""
    spans = -(-vocabulary // SPAN)
    lanes = (
        spans * LANES if vocabulary > LANES else vocabulary
    )  # the first words of a part of a span are enough
    lane, place = torch.arange(lanes, device=seeds.device).unsqueeze(0), positions.unsqueeze(1)
    words = philox((lane, place & WORD, place >> 32 & WORD, STREAM), seeds.unsqueeze(1))
    if vocabulary <= LANES:
        return words[0].to(dtype).add_(0.5).mul_(2.0**-32)
    drawn = torch.stack([word.to(dtype).view(-1, spans, LANES) for word in words], 2)
    return drawn.add_(0.5).mul_(2.0**-32).view(-1, spans * SPAN)[:, :vocabulary]


def reference_forward(
    logits: Tensor,  # (slots, vocabulary), any row stride
    temperature: Tensor,  # (slots,) float32, 0 for the likeliest token
    seeds: Tensor,  # (slots,) int64
    positions: Tensor,  # (slots,) int64, of the token that is drawn
) -> tuple[Tensor, Tensor]:
    """(tokens (slots,) int64, their log-probabilities (slots,) float32, float64 for float64 logits)."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    warm = temperature > 0
    z = z * torch.where(warm, temperature, 1.0).reciprocal().unsqueeze(1).to(z.dtype)
    score = z
    if z.device.type != "cpu" or warm.any():  # a processor need not draw what is not looked at
        u = draw_uniform(seeds, positions, logits.shape[1], z.dtype)
        spread = torch.where(u < SMALL, u * (1 + u * (0.5 + u / 3)), -(1 - u).log())
        score = torch.where(warm.unsqueeze(1), z - spread.log(), z)
    token = score.argmax(1, keepdim=True)
    return token[:, 0], (z.gather(1, token) - z.logsumexp(1, keepdim=True))[:, 0]


@triton.jit
def _better(score, index, other_score, other_index):
    """The higher score with its index, of equals the lower index."""
    first = (score > other_score) | ((score == other_score) & (index < other_index))
    return tl.where(first, score, other_score), tl.where(first, index, other_index)


@triton.jit
def _disturb(z, word, warm, SMALL: tl.constexpr):
    """z - log(-log(1 - u)) where it is warm, z where not."""
    u = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    spread = tl.where(u < SMALL, u * (1.0 + u * (0.5 + u / 3.0)), -tl.log(1.0 - u))
    return tl.where(warm, z - tl.log(spread), z)


@triton.jit(do_not_specialize=["vocabulary"])
def _span_kernel(
    logits_pointer, temperature_pointer, seeds_pointer, positions_pointer, numbers_pointer, tokens_pointer,
    vocabulary, logits_slot, LANES: tl.constexpr, STREAM: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """The best token of one span of one slot, its z, and the highest z with the sum over that."""
    slot, span, spans = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperature_pointer + slot)
    warm = temperature > 0
    factor = 1.0 / tl.where(warm, temperature, 1.0)
    position = tl.load(positions_pointer + slot)
    lane = tl.arange(0, LANES)
    counter = (span * LANES + lane).to(tl.uint32)
    c1 = tl.zeros((LANES,), dtype=tl.uint32) + (position & 0xFFFFFFFF).to(tl.uint32)
    c2 = tl.zeros((LANES,), dtype=tl.uint32) + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c3 = tl.full((LANES,), STREAM, dtype=tl.uint32)
    w0, w1, w2, w3 = tl.philox(tl.load(seeds_pointer + slot), counter, c1, c2, c3)
    t0 = span * (4 * LANES) + lane
    t1, t2, t3 = t0 + LANES, t0 + 2 * LANES, t0 + 3 * LANES
    row, low = logits_pointer + slot * logits_slot, float("-inf")
    z0 = tl.load(row + t0, mask=t0 < vocabulary, other=low).to(tl.float32) * factor
    z1 = tl.load(row + t1, mask=t1 < vocabulary, other=low).to(tl.float32) * factor
    z2 = tl.load(row + t2, mask=t2 < vocabulary, other=low).to(tl.float32) * factor
    z3 = tl.load(row + t3, mask=t3 < vocabulary, other=low).to(tl.float32) * factor
    peak = tl.max(tl.maximum(tl.maximum(z0, z1), tl.maximum(z2, z3)), axis=0)
    level = tl.maximum(peak, -1e30)  # a span without a possible token has a sum of 0
    total = tl.sum(tl.exp(z0 - level) + tl.exp(z1 - level) + tl.exp(z2 - level) + tl.exp(z3 - level), axis=0)
    s0, s1 = _disturb(z0, w0, warm, SMALL), _disturb(z1, w1, warm, SMALL)
    s2, s3 = _disturb(z2, w2, warm, SMALL), _disturb(z3, w3, warm, SMALL)
    score, token = _better(s0, t0, s1, t1)
    other, behind = _better(s2, t2, s3, t3)
    score, token = _better(score, token, other, behind)
    best = tl.max(score, axis=0)
    token = tl.min(tl.where(score == best, token, 2147483647), axis=0)
    z = tl.load(row + tl.minimum(token, vocabulary - 1)).to(tl.float32) * factor
    place = slot * spans + span
    tl.store(numbers_pointer + place * 4, best)
    tl.store(numbers_pointer + place * 4 + 1, z)
    tl.store(numbers_pointer + place * 4 + 2, level)
    tl.store(numbers_pointer + place * 4 + 3, total)
    tl.store(tokens_pointer + place, token)


@triton.jit(do_not_specialize=["spans"])
def _join_kernel(
    numbers_pointer, tokens_pointer, out_pointer, logprob_pointer, spans, SPANS: tl.constexpr
):  # fmt: skip
    """The token of one slot from those of its spans."""
    slot, span = tl.program_id(0).to(tl.int64), tl.arange(0, SPANS)
    mask, place = span < spans, slot * spans + span
    low = float("-inf")
    score = tl.load(numbers_pointer + place * 4, mask=mask, other=low)
    z = tl.load(numbers_pointer + place * 4 + 1, mask=mask, other=low)
    level = tl.load(numbers_pointer + place * 4 + 2, mask=mask, other=-1e30)
    total = tl.load(numbers_pointer + place * 4 + 3, mask=mask, other=0.0)
    token = tl.load(tokens_pointer + place, mask=mask, other=2147483647)
    best = tl.max(score, axis=0)
    token = tl.where(score == best, token, 2147483647)
    chosen = tl.min(token, axis=0)
    z = tl.max(tl.where(token == chosen, z, low), axis=0)
    highest = tl.max(level, axis=0)
    log_sum = highest + tl.log(tl.sum(total * tl.exp(level - highest), axis=0))
    tl.store(out_pointer + slot, chosen.to(tl.int64))
    tl.store(logprob_pointer + slot, z - log_sum)


def fused_forward(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, *, num_warps: int = 4
) -> tuple[Tensor, Tensor]:
    """`reference_forward` in two kernels, with the same random numbers to the bit."""
    slots, vocabulary = logits.shape
    spans, device = -(-vocabulary // SPAN), logits.device
    numbers = torch.empty(slots, spans, 4, dtype=torch.float32, device=device)
    tokens = torch.empty(slots, spans, dtype=torch.int32, device=device)
    chosen = torch.empty(slots, dtype=torch.int64, device=device)
    logprob = torch.empty(slots, dtype=torch.float32, device=device)
    if not slots:
        return chosen, logprob
    with torch.cuda.device_of(logits):
        _span_kernel[(slots, spans)](
            logits, temperature, seeds, positions, numbers, tokens, vocabulary, logits.stride(0),
            LANES=LANES, STREAM=STREAM, SMALL=SMALL, num_warps=num_warps,
        )  # fmt: skip
        _join_kernel[(slots,)](
            numbers, tokens, chosen, logprob, spans, SPANS=1 << (spans - 1).bit_length(), num_warps=1
        )
    return chosen, logprob


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on logits of `width` tokens on such a device."""
    if not 1 <= width <= MAX_VOCABULARY:
        return Support(False, f"The kernel takes vocabularies of 1 to {MAX_VOCABULARY} tokens, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *, rows: int, width: int, dtype: torch.dtype, device: torch.device | str, wide: bool = False
) -> Callable[[Implementation], dict[str, Tensor]]:
    """`rows` slots, a vocabulary of `width`; see `Op.sample`.

    Every third slot is cold, and its best token is there twice. A tenth of the logits is -inf. Seeds and positions
    have more than 32 bits, and signs.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide, layout="sliced")
    logits = draws.normal(rows, width, scale=3.0)
    logits.masked_fill_(draws.integers(0, 10, rows, width) == 0, float("-inf"))
    logits[:, width // 2] = 1.0  # one at least is possible
    temperature = draws.integers(1, 9, rows).float() / 4
    temperature[::3] = 0
    logits[::3, width // 3] = logits[::3, -1] = 20.0
    seeds = draws.integers(-(2**62), 2**62, rows)
    positions = draws.integers(0, 2**40, rows)

    def run(implementation: Implementation) -> dict[str, Tensor]:
        tokens, logprob = implementation.forward(logits, temperature, seeds, positions)
        return {"tokens": tokens, "logprob": logprob}

    return run


TOKEN_SAMPLER = Op(
    name="token_sampler",
    reference=Implementation(forward=reference_forward),
    triton=Implementation(forward=fused_forward),
    supports=supports,
    sample=sample,
)
