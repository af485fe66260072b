"""Kahneman-Tversky optimization: single answers that are good or bad, beside a model that stands still.

    h = c - c0     z = max(0, mean over the step of (log p - log p0) of an answer under another prompt)
    good: L = w_g [1 - s(beta (h - z))]     bad: L = w_b [1 - s(beta (z - h))]

Ethayarajh et al., 2024 (arXiv:2402.01306). z is a number of the whole step, without gradient: it takes a pass over as
many sequences as the step has, or these other answers go along behind their prompts, where one micro-step has them all.
`apo_zero_unpaired` (arXiv:2408.06266) has z = 0 and takes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from studio.core.events import Metric
from studio.data.sequence_packing import Example, LazySequence, count_labels, measure_lengths
from studio.data.statistics import balance_labels
from studio.engine.objectives.objective import Objective, Picked, Score, Terms

if TYPE_CHECKING:
    from torch import Tensor


class KahnemanTverskyOptimization(Objective):
    """Good answers gain and bad ones lose, each against what answers gain at large."""

    name = "kto"
    needs_reference = True
    derived = (Metric(name="rewards/margins", better="higher", first=True),)

    @property
    def shifted(self) -> bool:
        """Whether gains are measured from z."""
        return self.settings.loss != "apo_zero_unpaired"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """See Objective."""
        return (
            Metric(name="rewards/chosen", better="higher", first=True),
            Metric(name="rewards/rejected", better="lower", first=True),
            Metric(name="logps/chosen", better="higher", first=True),
            *((Metric(name="kl"),) if self.shifted else ()),
            Metric(name="logps/rejected", better="lower"),
        )

    def fit(self, examples: Sequence[Example]) -> Self:
        """See Objective: weights that the recipe leaves open, by how many good and bad examples there are."""
        found = balance_labels(*count_labels(examples))
        given = {
            "good_weight": found.desirable_weight if found else None,
            "bad_weight": found.undesirable_weight if found else None,
        }
        open_ones = {
            name: value for name, value in given.items() if value and not getattr(self.settings, name)
        }
        return self.with_settings(replace(self.settings, **open_ones))

    def complete(self, metrics: dict[str, float]) -> dict[str, float]:
        """See Objective: the margin of the two means, where a step has both kinds."""
        if not {"rewards/chosen", "rewards/rejected"} <= {*metrics}:
            return metrics
        return metrics | {"rewards/margins": metrics["rewards/chosen"] - metrics["rewards/rejected"]}

    def companions(self, examples: Sequence[Example], max_length: int) -> Sequence[Example] | None:
        """See Objective: each prompt with the answer of the example before it."""
        return Mismatched(examples, max_length) if self.shifted else None

    def measure_window(self, window: Sequence[Example], score: Score) -> float | None:
        """Return z."""
        if not self.shifted:
            return 0.0
        beside = [example.companion for example in window if example.companion is not None]
        if not beside:
            return 0.0
        now = score(beside)
        gains = [
            float(values.sum(dtype=np.float64) - one.reference[one.trained].sum(dtype=np.float64))
            for values, one in zip(now, beside, strict=True)
        ]
        return max(0.0, sum(gains) / len(gains))

    @property
    def measures_beside(self) -> bool:
        """See Objective."""
        return self.shifted

    def measure_beside(self, log_probabilities: Tensor, picked: Picked) -> Tensor:
        """See Objective: z."""
        gains = log_probabilities.double() - picked.reference
        return (gains.sum() / len(picked.counts)).clamp_min(0.0).float()[None]

    def loss(self, log_probabilities: Tensor, picked: Picked) -> Terms:
        """See Objective."""
        settings = self.settings
        beta, good = self.beta, picked.labels
        sums = picked.sum_sequences(log_probabilities)
        gains = picked.sum_sequences(log_probabilities - picked.reference)
        chosen, rejected = good.to(gains.dtype), (~good).to(gains.dtype)
        signs = chosen - rejected
        weights = (settings.good_weight or 1.0) * chosen + (settings.bad_weight or 1.0) * rejected
        worth = (beta * signs * (gains - picked.window[0])).sigmoid()
        gradient = -signs * weights * beta * worth * (1 - worth)
        counted = chosen.sum(), rejected.sum()
        metrics = {
            "rewards/chosen": (beta * (gains @ chosen), counted[0]),
            "rewards/rejected": (beta * (gains @ rejected), counted[1]),
            "logps/chosen": (sums @ chosen, counted[0]),
            "logps/rejected": (sums @ rejected, counted[1]),
            "kl": (picked.window[0] * len(gains), gains.new_full((), len(gains))),
        }
        return Terms(
            loss=(weights * (1 - worth)).sum(),
            gradient=picked.spread(gradient, len(log_probabilities)),
            metrics=metrics,
        )


class Mismatched(LazySequence):
    """The prompt of each example with the answer of the one before it, the first with the last one's."""

    def __init__(self, examples: Sequence[Example], max_length: int) -> None:
        self.examples, self.max_length = examples, max_length

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]: an upper bound, which takes no reading."""
        lengths = measure_lengths(self.examples)
        return np.minimum(lengths + np.roll(lengths, 1), self.max_length)

    @property
    def documents(self) -> np.ndarray:
        """int64 [examples]"""
        return np.ones(len(self), dtype=np.int64)

    def make(self, i: int) -> Example:
        """Return the prompt of example `i` and the other answer, cut at the maximum length."""
        own, other = self.examples[i], self.examples[(i or len(self.examples)) - 1]
        prompt = own.token_ids[: int(own.trained.argmax())]
        answer = other.token_ids[int(other.trained.argmax()) :]
        ids = np.concatenate([prompt, answer])
        trained = np.concatenate([np.zeros(len(prompt), bool), other.trained[-len(answer) :]])
        ids = ids[: self.max_length]
        return Example(ids, trained[: len(ids)], (len(ids),))


KTO = KahnemanTverskyOptimization()
