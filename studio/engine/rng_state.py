"""The random generators that training draws from, as data: read, set and seeded together."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def read_generators() -> dict[str, Any]:
    """Return the states of all random generators that training draws from, as tensors and plain values."""
    version, words, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), int(place), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def write_generators(states: dict[str, Any]) -> None:
    """Set all random generators to read_generators(), of cards those that are visible here, in their order."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, place, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), place, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    cards = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    for card, state in zip(cards, states["cuda"], strict=False):  # a run may go on where there are others
        torch.cuda.set_rng_state(state, card)


def seed_all(seed: int) -> None:
    """Seed every random generator that training draws from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
