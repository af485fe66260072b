"""The answer is the given one: once both are normalised, or to the letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.core.metrics import exact, normalised
from studio.core.metrics.metric import AnswerMetric
from studio.engine.rewards.given_answer import ComparingReward


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact(ComparingReward):
    """1 or 0."""

    name: ClassVar[str] = "exact"

    to_the_letter: bool = knob(False)

    @property
    def metric(self) -> AnswerMetric:
        """By which both are compared."""
        return exact.METRIC if self.to_the_letter else normalised.METRIC
