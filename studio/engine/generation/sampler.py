"""Draws the next token of each sequence from its logits: the sampling kernel's numbers, in PyTorch.

    token = argmax_v (z_v - log(-log(1 - u_v)))        z = logits / T        lp = z_token - log sum_v exp(z_v)

u_v comes from Philox-4x32-10 (Salmon et al., 2011) keyed by the sequence's seed, counted by position and token alone:
so a sequence draws the same in any batch, in any slot, and again. At temperature 0 the largest logit, the first of
equals. Penalty, temperature, top-k, top-p and min-p in the order and by the rules of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from studio_kernels.dropout import WORD, philox
from studio_kernels.token_sampler import LANES, STREAM, WORDS
from torch import Tensor

from studio.engine.generation.request import Sampling

NOISE_SPAN = 26.0
"""The noise lies between -22.9 and 3.2 for numbers of 32 bits: who is further below the largest is never chosen."""


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
    """Return scores (V,) in fp64 with their noise, -inf for those that no noise can bring to the front."""
    near = (scores >= scores.max() - NOISE_SPAN).nonzero()[:, 0]
    found = torch.full(scores.shape, -torch.inf, dtype=torch.float64, device=scores.device)
    found[near] = scores[near].double() - (-torch.log1p(-draw_uniform(near, seed, position))).log()
    return found


def draw_uniform(tokens: Tensor, seed: int, position: int | Tensor) -> Tensor:
    """Return u in (0, 1) fp64 of each of `tokens` (N,) int64; position: () or (N,)."""
    lane = tokens // (LANES * WORDS) * LANES + tokens % LANES
    place = torch.zeros_like(tokens) + position
    words = torch.stack(philox((lane, place & WORD, place >> 32 & WORD, STREAM), seed))
    mine = words.gather(0, (tokens // LANES % WORDS)[None])[0]
    return (mine.double() + 0.5) * 2.0**-32
