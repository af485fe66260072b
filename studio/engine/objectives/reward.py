"""A reward model: one number for a sequence, higher for the better of two answers.

    a, b: scores of the chosen and the rejected sequence     L = -log s(a - b) + k (a + b)^2

Bradley and Terry, 1952; the second term keeps scores around 0 (Eisenstein et al., 2023, arXiv:2312.09244). What the
head gives for each place is the score there, in place of a log-probability: that of a sequence is its last token's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from studio.core.events import Metric
from studio.data.sequence_packing import Example, WrappedExamples
from studio.engine.objectives.objective import Objective, Picked, Terms

if TYPE_CHECKING:
    from torch import Tensor


class RewardModel(Objective):
    """The better sequence's score above the worse one's."""

    name = "reward"
    sequences = 2
    scores = True
    metrics = (
        Metric(name="accuracy", unit="share", better="higher", first=True),
        Metric(name="margin", better="higher", first=True),
        Metric(name="mean_reward"),
    )

    def view(self, examples: Sequence[Example]) -> Sequence[Example]:
        """See Objective: only the score of each sequence's last token is asked for."""
        return WithLastPlaces(examples)

    def loss(self, log_probabilities: Tensor, picked: Picked) -> Terms:
        """See Objective; `log_probabilities` are scores."""
        import torch
        from torch.nn.functional import logsigmoid

        center = self.settings.center
        places = picked.counts.cumsum(0) - 1
        scores = log_probabilities[places]
        good, bad = scores[0::2], scores[1::2]
        losses = -logsigmoid(good - bad) + center * (good + bad).square()
        pull, drift = torch.sigmoid(bad - good), 2 * center * (good + bad)
        gradient = torch.zeros_like(log_probabilities)
        gradient[places] = torch.stack([drift - pull, drift + pull], dim=1).flatten()
        pairs = losses.new_full((), len(losses))
        metrics = {
            "accuracy": ((good > bad).float().sum(), pairs),
            "margin": ((good - bad).sum(), pairs),
            "mean_reward": (scores.sum(), 2 * pairs),
        }
        return Terms(loss=losses.sum(), gradient=gradient, metrics=metrics)


class WithLastPlaces(WrappedExamples):
    """Sequences with one token more, behind which nothing is read: the place before it is the last token's."""

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]"""
        return super().lengths + self.documents

    def make(self, i: int) -> Example:
        """Return example `i`."""
        example = self.examples[i]
        ends = np.cumsum(example.lengths)
        trained = np.insert(np.zeros(len(example.token_ids), dtype=bool), ends, True)
        return dataclasses.replace(
            example,
            token_ids=np.insert(example.token_ids, ends, example.token_ids[ends - 1]),
            trained=trained,
            lengths=tuple(length + 1 for length in example.lengths),
            weights=None,
        )


REWARD = RewardModel()
