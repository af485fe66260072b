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
from torch import Tensor, nn

from studio.engine.generation.request import Sampling

MOST_NOISE, LEAST_NOISE = 22.9, 3.2
"""-log(-log(1 - u)) lies between -3.13 and 22.874 for numbers of 32 bits; a score's rounding in fp32 is left over."""
NUCLEUS = 512
"""Tokens among which top-p is looked for before all are sorted: 0.6 ms in place of 4 of 49,152."""


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
        rows = torch.tensor(warm, device=logits.device)
        mine = [samplings[row] for row in warm]
        everybody = len(warm) == len(samplings)
        scores = logits if everybody else logits[rows]
        scores /= torch.tensor([[one.temperature] for one in mine], device=logits.device)
        cut_alike(scores, mine)
        numbers = [[one.seed for one in mine], [positions[row] for row in warm]]
        tokens[rows] = choose(scores, *torch.tensor(numbers, device=logits.device))
        if not everybody:
            logits[rows] = scores
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


def cut_alike(scores: Tensor, samplings: Sequence[Sampling]) -> None:
    """Cut each row of scores (S, V) as its sampling says, in place, those that are cut alike together."""
    groups: dict[tuple[float, float, float], list[int]] = {}
    for row, one in enumerate(samplings):
        if one.top_k or one.top_p < 1.0 or one.min_p:
            groups.setdefault((one.top_k, one.top_p, one.min_p), []).append(row)
    for rows in groups.values():
        if len(rows) == len(samplings):
            cut(scores, samplings[0])
        else:
            part = scores[rows]
            cut(part, samplings[rows[0]])
            scores[rows] = part


def cut(scores: Tensor, sampling: Sampling) -> None:
    """Take tokens out, by setting their scores (S, V) to -inf in place: top-k, then top-p, then min-p."""
    count = scores.shape[-1]
    if 0 < sampling.top_k < count:
        scores.masked_fill_(scores < scores.topk(sampling.top_k).values[:, -1:], -torch.inf)
    if sampling.top_p < 1.0:
        shares = scores.softmax(-1)
        first = shares.topk(min(NUCLEUS, count)).values
        if bool((first.sum(-1) <= sampling.top_p).any()):
            first = shares.sort(-1, descending=True).values
        before = first.cumsum(-1) - first
        before[:, 0] = -1.0  # the likeliest stays
        least = first.masked_fill(before >= sampling.top_p, torch.inf).amin(-1, keepdim=True)
        scores.masked_fill_(shares < least, -torch.inf)
    if sampling.min_p > 0.0:
        shares = scores.softmax(-1)
        scores.masked_fill_(shares < sampling.min_p * shares.amax(-1, keepdim=True), -torch.inf)


def choose(scores: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Return tokens (S,) int64, drawn from the softmax of scores (S, V); seeds, positions: (S,) int64.

    The likeliest comes to `highest` - LEAST_NOISE at least, and u < -log(1 - u): whoever is to win against it needs
    u < exp(z - highest + LEAST_NOISE). Numbers are made where one could be as small, in few operations for all slots,
    and the few tokens whose number is as small are looked at in fp64.
    """
    count = scores.shape[1]
    needed = scores - scores.amax(1, keepdim=True) + LEAST_NOISE
    wanted = nn.functional.pad(needed.amax(0), (0, -count % (LANES * WORDS)), value=-torch.inf)
    span, lane = (wanted.view(-1, WORDS, LANES).amax(1) > -MOST_NOISE).nonzero(as_tuple=True)
    words = draw_words(span * LANES + lane, seeds[:, None], positions[:, None])
    columns = span * LANES * WORDS + torch.arange(WORDS, device=span.device)[:, None] * LANES + lane
    bounds = needed[:, columns.clamp(max=count - 1)].exp_() * (columns < count)
    slot, word, pair = (words.float() * 2.0**-32 < bounds).nonzero(as_tuple=True)
    token = columns[word, pair]
    noisy = scores[slot, token].double() + to_noise(words[slot, word, pair])
    best = noisy.new_full((len(scores),), -torch.inf).scatter_reduce(0, slot, noisy, "amax")
    # Of equals the first; where nothing is a number, the last.
    token = token.where(noisy == best[slot], count - 1)
    return token.new_full((len(scores),), count - 1).scatter_reduce(0, slot, token, "amin")


def draw_words(lanes: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Return the four numbers of 32 bits, (S, 4, N) int64, of lanes (N,) with seeds and positions (S, 1).

    By broadcasting a seed's keys are made once: 3 ms in place of 35 for 16 seeds and 12,288 lanes.
    """
    return torch.stack(philox((lanes, positions & WORD, positions >> 32 & WORD, STREAM), seeds), 1)


def to_noise(words: Tensor) -> Tensor:
    """Return -log(-log(1 - u)) fp64 of numbers of 32 bits."""
    return -(-torch.log1p(-(words.double() + 0.5) * 2.0**-32)).log()
