"""From rewards to advantages: by how much each answer to a question was better than the others to it. numpy alone.

P prompts, G answers of each; nan: an answer that nobody could score, which stands in no mean and has advantage 0.
"""

from __future__ import annotations

import numpy as np

from studio.core.recipe import SamplingSpec
from studio.engine.objectives.grpo import VARIANTS

LEAST_SPREAD = 1e-4
"""Added to what advantages are divided by, as trl does."""
SAME = 1e-8
"""A group of this spread, or less, teaches nothing."""


def find_advantages(rewards: np.ndarray, settings: SamplingSpec) -> np.ndarray:
    """Return float64 (P, G) of `rewards` float64 (P, G).

    RLOO: less the mean of the others of the group (arXiv:2402.14740); else less the group's mean (arXiv:2402.03300),
    divided by its spread or by that of all, or by nothing (Dr. GRPO, arXiv:2503.20783).
    """
    known = ~np.isnan(rewards)
    filled = np.where(known, rewards, 0.0)
    counts = known.sum(axis=1, keepdims=True)
    if settings.loss == "rloo":
        others = np.maximum(counts - 1, 1)
        found = rewards - (filled.sum(axis=1, keepdims=True) - filled) / others
        found = np.where(counts > 1, found, 0.0)
    else:
        found = rewards - filled.sum(axis=1, keepdims=True) / np.maximum(counts, 1)
    by = choose_scale(settings)
    if by == "group":
        found = found / (spread_of(rewards, axis=1) + LEAST_SPREAD)
    elif by == "batch":
        found = found / (spread_of(rewards) + LEAST_SPREAD)
    return np.nan_to_num(found, nan=0.0)


def choose_scale(settings: SamplingSpec) -> str:
    """Return what advantages are divided by: the recipe's word, or what the loss is known for."""
    if settings.scale_rewards != "auto":
        return settings.scale_rewards
    return "group" if VARIANTS[settings.loss].scales else "none"


def find_equal(rewards: np.ndarray) -> np.ndarray:
    """Return bool (P,): whether all answers of a group were scored alike, or none could be."""
    return spread_of(rewards, axis=1)[:, 0] <= SAME


def spread_of(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Return the standard deviation, of one less than there are, along `axis` kept; 0 of fewer than two."""
    known = ~np.isnan(values)
    counts = known.sum(axis=axis, keepdims=True)
    filled = np.where(known, values, 0.0)
    means = filled.sum(axis=axis, keepdims=True) / np.maximum(counts, 1)
    off = np.where(known, filled - means, 0.0)
    found = np.sqrt((off**2).sum(axis=axis, keepdims=True) / np.maximum(counts - 1, 1))
    return np.where(counts > 1, found, 0.0)


def penalise_long(lengths: np.ndarray, settings: SamplingSpec) -> np.ndarray:
    """Return DAPO's soft penalty of answers' lengths (tokens): 0 up to the last part, then down to -1 at the limit.

    arXiv:2503.14476; the part is `overlong_share` of the limit.
    """
    limit = settings.answer_tokens
    part = max(1.0, settings.overlong_share * limit)
    return -np.clip((lengths - (limit - part)) / part, 0.0, 1.0)
