"""Tokens are drawn from the distribution that temperature, top-k, top-p and the rest leave."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from studio.engine.generation.request import Sampling
from studio.engine.generation.sampler import add_noise, draw, draw_uniform

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


def test_who_is_left_out_could_not_have_won():
    scores = torch.linspace(-60, 0, 3000)
    everybody = draw_uniform(torch.arange(3000), 5, 8)
    noisy = scores.double() - (-torch.log1p(-everybody)).log()
    found = add_noise(scores, 5, 8)
    assert found.argmax() == noisy.argmax() and found.isfinite().sum() < 1500


@pytest.mark.computing
def test_draws_follow_the_distribution():
    scores = LOGITS[0, :8] / 2
    count, tokens = 50_000, torch.arange(8)
    expected = scores.double().softmax(-1) * count
    low = 0
    for seed in range(20):
        uniform = draw_uniform(tokens.repeat(count), seed, torch.arange(count).repeat_interleave(8)).view(
            count, 8
        )
        drawn = (scores.double() - (-torch.log1p(-uniform)).log()).argmax(-1)
        found = torch.bincount(drawn, minlength=8)
        statistic = ((found - expected).square() / expected).sum()
        share = torch.special.gammaincc(torch.tensor(3.5, dtype=torch.float64), statistic / 2)
        low += bool(share < 0.01)
        for place in (0, 17, 4_999):
            assert add_noise(scores, seed, place).argmax() == drawn[place]
    assert low <= 1
