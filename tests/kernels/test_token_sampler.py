"""Drawing tokens: the exact distribution, the same token in any batch, the likeliest where it is cold."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.dropout import philox
from studio_kernels.token_sampler import draw_uniform, fused_forward, reference_forward

from tests.chi_square import DRAWS, SEEDS, find_share


@pytest.mark.parametrize(
    ("forward", "device"),
    [
        pytest.param(reference_forward, "cpu", marks=pytest.mark.computing),
        pytest.param(reference_forward, "cuda", marks=pytest.mark.gpu),
        pytest.param(fused_forward, "cuda", marks=pytest.mark.gpu),
    ],
)
def test_draws_have_the_distribution_of_the_softmax(forward, device):
    """Chi-square of 50,000 draws for each of 20 seeds, all of one seed in one launch."""
    logits = torch.linspace(-3, 2, 13)[torch.randperm(13, generator=torch.Generator().manual_seed(0))]
    logits, temperature = logits.to(device), 0.7
    expected = (logits / temperature).double().softmax(0) * DRAWS
    warm, positions = torch.full((DRAWS,), temperature, device=device), torch.arange(DRAWS, device=device)
    low = 0
    for seed in SEEDS:
        seeds = torch.full((DRAWS,), seed, device=device)
        tokens, logprob = forward(logits.expand(DRAWS, -1), warm, seeds, positions)
        low += find_share(torch.bincount(tokens, minlength=13), expected) < 0.01
        torch.testing.assert_close(logprob, (logits / temperature).log_softmax(0)[tokens])
    assert low <= 1


def test_a_token_depends_on_its_own_seed_and_position_alone():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5000, generator=generator)
    seeds, positions = torch.tensor([5, 5, 6, -5, 5, 2**40]), torch.tensor([0, 1, 0, 0, 2**40, 0])
    warm = torch.ones(6)
    tokens, _ = reference_forward(logits, warm, seeds, positions)
    order = torch.tensor([3, 1, 5])
    again, _ = reference_forward(logits[order], warm[order], seeds[order], positions[order])
    assert torch.equal(again, tokens[order])
    same, _ = reference_forward(logits[:1].expand(6, -1), warm, seeds, positions)
    assert len(set(same.tolist())) == 6


def test_of_equals_the_first_is_the_likeliest():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [float("-inf"), -7.0, float("-inf"), float("-inf")]])
    zeros = torch.zeros(2, dtype=torch.int64)
    tokens, logprob = reference_forward(logits, torch.zeros(2), zeros, zeros)
    assert tokens.tolist() == [1, 1]
    torch.testing.assert_close(logprob, logits.log_softmax(1)[:, 1])


def test_the_numbers_are_those_of_philox():
    """The known answer of Random123 for a key and a counter of zeros, in the first column of each word."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    zeros = torch.zeros(1, dtype=torch.int64)
    assert [word.item() for word in philox((zeros, zeros, zeros, 0), zeros)] == words
    drawn = draw_uniform(torch.zeros(3, dtype=torch.int64), torch.arange(3), 4097, torch.float64)
    assert drawn.shape == (3, 4097) and 0 < drawn.min() and drawn.max() < 1
    assert abs(drawn.mean().item() - 0.5) < 0.01 and len(drawn.unique()) == drawn.numel()
