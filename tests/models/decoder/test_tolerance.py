"""What the judge lets pass: errors like the own, also where one value outweighs all others; no fault in any channel."""

from __future__ import annotations

import pytest
import torch

from studio.models.decoder.tolerance import ASIDE, NUDGES, Judge, further, nudge

HALF = torch.bfloat16
CHANNELS = 9 * ASIDE
MASSIVE = 507


@pytest.fixture
def norm():
    """Return a norm's gradient with one massive channel, and what bf16 makes of it twice, each error by itself."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(CHANNELS, generator=generator) * 30
    truth[MASSIVE] = 2000.0
    ours, own = (truth + 0.4 * torch.randn(CHANNELS, generator=generator) for _ in range(2))
    own[MASSIVE], ours[MASSIVE] = truth[MASSIVE] + 5, truth[MASSIVE] + 5
    return ours, own, truth


def judge(ours, own, truth, dtype=HALF) -> bool:
    found = Judge(dtype, exact=True).compare(0, ["norm.weight"], [ours], [own], [truth], dtype)
    return all(one.ok for one in found)


def test_a_single_value_that_is_further_off_by_chance_is_no_fault(norm):
    ours, own, truth = norm
    assert judge(ours, own, truth)
    ours[MASSIVE] = truth[MASSIVE] + 80  # 16 times the own, 4 % of the value
    assert judge(ours, own, truth)


def test_many_values_that_are_further_off_are_one(norm):
    ours, own, truth = norm
    assert not judge(truth + 5 * (ours - truth), own, truth)


@pytest.mark.parametrize("channel", [0, 300, MASSIVE, CHANNELS - 1])
@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_one_channel_that_is_left_out_is_one(norm, channel, value):
    ours, own, truth = norm
    truth[channel] = own[channel] = max(60.0, float(truth[channel]))
    ours[channel] = value
    assert not judge(ours, own, truth)


def test_a_gradient_that_is_zero_but_for_rounding_is_held_against_the_own(norm):
    noise = 1e-9 * norm[0]
    assert judge(noise, 0.8 * noise, torch.zeros(CHANNELS))
    assert judge(torch.zeros(CHANNELS), torch.zeros(CHANNELS), torch.zeros(CHANNELS))


def test_in_fp32_all_values_are_equal(norm):
    ours, own, truth = norm
    ours[MASSIVE] = truth[MASSIVE] + 80
    assert not judge(ours, truth, truth, torch.float32)


def test_of_two_own_errors_the_larger_one_counts():
    truth = [torch.ones(4), torch.ones(4)]
    near, far = [torch.full((4,), 1.1), torch.full((4,), 1.3)], [torch.full((4,), 0.8), torch.full((4,), 1.2)]
    assert [float(one[0]) for one in further(near, far, truth)] == pytest.approx([0.8, 1.3])


def test_a_nudge_changes_last_bits_alone():
    x = torch.randn(500, generator=torch.Generator().manual_seed(1)).abs() + 0.1
    nudged = list(nudge(x))
    assert len(nudged) == NUDGES
    for one in nudged:
        off = (one - x).abs() / x
        assert 0 < off.max() <= 3e-7 and (off > 0).float().mean() > 0.4
    assert not torch.equal(nudged[0], nudged[1])
