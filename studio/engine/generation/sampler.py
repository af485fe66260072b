"""Draws the next token of each sequence from its logits: the twin, in PyTorch, of the sampling kernel.

    token = argmax_v (z_v / T + g_v)        g_v = -log(-log u_v)        lp = z_token / T - log sum_v exp(z_v / T)

u_v comes from Philox-4x32-10 (Salmon et al., 2011) keyed by the sequence's seed, counted by token and position alone:
so a sequence draws the same in any batch, in any slot, and again. At temperature 0 the largest logit, the first of
equals. Penalty, temperature, top-k, top-p and min-p in the order and by the rules of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from studio.engine.generation.request import Sampling

WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
NOISE_SPAN = 26.0
"""g lies between -3.2 and 22.9 for numbers of 32 bits: who is further below the largest can never be chosen."""


def draw(
    logits: Tensor,  # (S, V) fp32, may be written over
    samplings: Sequence[Sampling],
    histories: Sequence[Sequence[int]],
    positions: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return tokens (S,) int64 and their log-probabilities (S,) fp32.

    histories: tokens so far of each sequence, read where repetition is penalised; positions: how many those are.
    """
    if any(one.repetition_penalty != 1.0 for one in samplings):
        penalise(logits, samplings, histories)
    warm = [row for row, one in enumerate(samplings) if one.temperature > 0]
    tokens = logits.argmax(-1)
    if warm:
        for row in warm:
            one = samplings[row]
            scores = logits[row].div_(one.temperature)
            if not one.plain:
                cut(scores, one)
            tokens[row] = add_noise(scores, one.seed, positions[row]).argmax()
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    return tokens, chosen - logits.logsumexp(-1)


def penalise(logits: Tensor, samplings: Sequence[Sampling], histories: Sequence[Sequence[int]]) -> None:
    """Make what was said before less likely, in place: positive logits are divided, negative ones multiplied."""
    for row, (one, history) in enumerate(zip(samplings, histories, strict=True)):
        if one.repetition_penalty != 1.0:
            said = torch.tensor(sorted(set(history)), device=logits.device)
            scores = logits[row, said]
            penalty = one.repetition_penalty
            logits[row, said] = torch.where(scores < 0, scores * penalty, scores / penalty)


def cut(scores: Tensor, sampling: Sampling) -> None:
    """Take tokens out, by setting their scores (V,) to -inf in place: top-k, then top-p, then min-p."""
    if 0 < sampling.top_k < len(scores):
        scores.masked_fill_(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p < 1.0:
        ordered, places = scores.sort()
        out = ordered.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        out[-1:] = False  # the likeliest stays
        scores[places[out]] = -torch.inf
    if sampling.min_p > 0.0:
        shares = scores.softmax(-1)
        scores.masked_fill_(shares < sampling.min_p * shares.max(), -torch.inf)


def add_noise(scores: Tensor, seed: int, position: int) -> Tensor:
    """Return scores (V,) fp64 + g, -inf for those that no g can bring to the front."""
    near = (scores >= scores.max() - NOISE_SPAN).nonzero()[:, 0]
    found = torch.full(scores.shape, -torch.inf, dtype=torch.float64, device=scores.device)
    uniform = (philox(near, position, seed).double() + 0.5) * 2.0**-32
    found[near] = scores[near].double() - (-uniform.log()).log()
    return found


def philox(tokens: Tensor, position: int | Tensor, seed: int) -> Tensor:
    """Return 32 random bits (N,) int64 for each of `tokens` (N,) int64; position: () or (N,)."""
    x0 = tokens & WORD
    x1 = torch.zeros_like(tokens) + position & WORD
    x2, x3 = torch.zeros_like(tokens), torch.zeros_like(tokens)
    k0, k1 = seed & WORD, seed >> 32 & WORD
    for _ in range(ROUNDS):
        first, second = x0 * MULTIPLIERS[0], x2 * MULTIPLIERS[1]  # modulo 2^64: the upper half is right
        x0, x1, x2, x3 = (
            (second >> 32 & WORD) ^ x1 ^ k0, second & WORD, (first >> 32 & WORD) ^ x3 ^ k1, first & WORD,
        )  # fmt: skip
        k0, k1 = k0 + WEYL[0] & WORD, k1 + WEYL[1] & WORD
    return x0
