"""The answer comes to the given number: the last one, that after ####, that in \\boxed{}; 1,234 and 50 % and 3/4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.core.metrics import number
from studio.core.metrics.metric import AnswerMetric, MetricSettings
from studio.engine.rewards.given_answer import ComparingReward


@dataclass(frozen=True, kw_only=True, slots=True)
class Number(ComparingReward):
    """1 or 0."""

    name: ClassVar[str] = "number"
    metric: ClassVar[AnswerMetric] = number.METRIC

    tolerance: float = knob(1e-6, minimum=0.0, maximum=1.0)

    @property
    def settings(self) -> MetricSettings:
        """See ComparingReward."""
        return MetricSettings(tolerance=self.tolerance)
