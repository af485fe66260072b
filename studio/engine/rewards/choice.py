"""The answer chooses the right option, by its letter or its words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio.core.metrics import choice
from studio.core.metrics.metric import AnswerMetric
from studio.engine.rewards.given_answer import ComparingReward


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceReward(ComparingReward):
    """1 or 0; None for a row whose options or right one cannot be read."""

    name: ClassVar[str] = "choice"
    metric: ClassVar[AnswerMetric] = choice.METRIC
