"""The random generators go on where they were, also on a machine with other cards."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from studio.engine.rng_state import read_generators, seed_all, write_generators


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_what_is_drawn_after_is_the_same_again():
    seed_all(7)
    draw()
    states = read_generators()
    first = draw()
    draw()
    write_generators(states)
    assert draw() == first


@pytest.mark.parametrize("cards", [0, 1, 2, 3])
def test_a_run_goes_on_with_other_cards(monkeypatch, cards):
    """Two were visible when the checkpoint was written."""
    kept, set_to = [torch.full((16,), card, dtype=torch.uint8) for card in (1, 2)], {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cards > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, card: set_to.update({card: int(state[0])}))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: kept)
    write_generators(read_generators() | {"cuda": kept})
    assert set_to == dict([(0, 1), (1, 2)][:cards])
