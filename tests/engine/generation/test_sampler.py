"""Tokens are drawn from the distribution that temperature, top-k, top-p and the rest leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from studio_kernels.token_sampler import draw_uniform
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from studio.engine.generation.request import Sampling
from studio.engine.generation.sampler import NUCLEUS, choose, draw
from tests.chi_square import DRAWS, SEEDS, find_share

LOGITS = torch.randn(3, 300, generator=torch.Generator().manual_seed(0)) * 3
HISTORY = [4, 9, 9, 250]


def test_scores_are_shaped_as_transformers_shapes_them():
    one = Sampling(temperature=2.0, top_k=50, top_p=0.8, min_p=0.02, repetition_penalty=1.3)
    ids, wanted = torch.tensor([HISTORY]), LOGITS[:1].clone()
    for step in (
        RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(2.0), TopKLogitsWarper(50),
        TopPLogitsWarper(0.8), MinPLogitsWarper(0.02),
    ):  # fmt: skip
        wanted = step(ids, wanted)
    given = LOGITS[:1].clone()
    [token], [score] = draw(given, [one], [HISTORY], [4])
    assert torch.allclose(given, wanted) and 1 < int(wanted.isfinite().sum()) < 50
    assert float(score) == pytest.approx(float(wanted.log_softmax(-1)[0, token]), abs=1e-5)


def test_at_temperature_0_the_first_of_the_likeliest():
    given = LOGITS.clone()
    given[1, [7, 90]] = 50.0
    tokens, scores = draw(given, [Sampling()] * 3, [HISTORY] * 3, [4] * 3)
    assert tokens.tolist() == [int(LOGITS[0].argmax()), 7, int(LOGITS[2].argmax())]
    assert float(scores[1]) == pytest.approx(-0.6931, abs=1e-3)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("vocabulary", [8, 513, 3000])
def test_the_winner_is_the_one_of_all_tokens(scale, vocabulary):
    scores = torch.randn(9, vocabulary, generator=torch.Generator().manual_seed(1)) * scale
    scores[3, 1:] = -torch.inf
    seeds, positions = torch.arange(9) - 2**40, torch.arange(9) * 2**31
    uniform = draw_uniform(seeds, positions, vocabulary, torch.float64)
    everybody = scores.double() - (-torch.log1p(-uniform)).log()
    assert torch.equal(choose(scores, seeds, positions), everybody.argmax(-1))


def test_a_row_is_drawn_the_same_beside_others_of_other_settings():
    generator = torch.Generator().manual_seed(2)
    logits, samplings = torch.randn(40, 300, generator=generator) * 3, []
    for row in range(40):
        cut = ({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1, "top_k": 9}, {"repetition_penalty": 1.4})[
            row % 5
        ]
        samplings.append(Sampling(temperature=row % 4 / 2, seed=row, **cut))
    positions = list(range(40))
    tokens, scores = draw(logits.clone(), samplings, [HISTORY] * 40, positions)
    for row, one in enumerate(samplings):
        token, score = draw(logits[row : row + 1].clone(), [one], [HISTORY], [row])
        assert token == tokens[row] and torch.allclose(score, scores[row], atol=1e-5)


def test_top_p_of_a_flat_distribution_looks_further_than_the_first_tokens():
    logits = torch.randn(2, 4000, generator=torch.Generator().manual_seed(3)) * 0.1
    wanted = TopPLogitsWarper(0.8)(None, logits.clone())
    draw(logits, [Sampling(temperature=1.0, top_p=0.8)] * 2, [[], []], [0, 1])
    assert torch.equal(logits, wanted) and int(wanted[0].isfinite().sum()) > 2 * NUCLEUS


@pytest.mark.computing
@pytest.mark.parametrize("cut", [{}, {"top_k": 7, "top_p": 0.9}, {"min_p": 0.05}], ids=str)
def test_draws_follow_the_distribution(cut):
    """Chi-square of 50,000 draws for each of 20 seeds; 0.2 of 20 right ones are below 0.01."""
    sampling, shaped = Sampling(temperature=2.0, **cut), LOGITS[:1, :13] / 2
    if "top_k" in cut:
        shaped = TopPLogitsWarper(0.9)(None, TopKLogitsWarper(7)(None, shaped))
    if "min_p" in cut:
        shaped = MinPLogitsWarper(0.05)(None, shaped)
    expected = shaped.double().softmax(-1)[0] * DRAWS
    low = 0
    for seed in SEEDS:
        logits = LOGITS[:1, :13].repeat(DRAWS, 1)
        tokens, _ = draw(logits, [replace(sampling, seed=seed)] * DRAWS, [()] * DRAWS, range(DRAWS))
        low += find_share(torch.bincount(tokens, minlength=13), expected) < 0.01
    assert low <= 1
