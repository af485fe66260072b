"""Supervised fine-tuning in which the data say how much each answer counts.

    L = sum_t w_t (-log p_t) / sum_t w_t        g_t = -w_t / sum_t w_t

w_t > 0 the weight of the message, or of the token, that t belongs to. All weights alike give plain fine-tuning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from studio.core.events import Metric
from studio.data.sequence_packing import Example, document_starts
from studio.engine.objectives.objective import Picked, TokenObjective

if TYPE_CHECKING:
    from torch import Tensor


class WeightedFineTuning(TokenObjective):
    """-log p of every answer's tokens, each times its weight in the data."""

    name = "weighted_sft"
    metrics = (Metric(name="plain_loss", better="lower"),)

    def count(self, example: Example) -> float:
        """See Objective: the weights of the trained tokens."""
        if example.weights is None:
            return super().count(example)
        trained = example.trained.copy()
        trained[document_starts(example)] = False
        return float(example.weights[trained].sum(dtype=np.float64))

    def weigh(self, example: Example) -> np.ndarray | None:
        """See TokenObjective."""
        return example.weights

    def measure(self, losses: Tensor, picked: Picked) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return the loss as it is without weights."""
        return {"plain_loss": (losses.sum(), losses.new_full((), losses.shape[0]))}


WEIGHTED_SFT = WeightedFineTuning()
