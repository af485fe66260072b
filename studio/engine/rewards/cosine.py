"""Right answers are worth more the shorter they are, wrong ones less: a cosine between two ends each.

    b + (a - b) (1 + cos(pi min(1, n / L))) / 2        a: at no length, b: at L tokens and beyond

Yeo et al., 2025 (arXiv:2502.03373, appendix C.1); the ends are those of trl's get_cosine_scaled_reward. A wrong answer
loses less when it is long: who is wrong is to think longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.core.metrics import choice, normalised, number
from studio.core.metrics.metric import AnswerMetric
from studio.engine.rewards.given_answer import ComparingReward
from studio.engine.rewards.reward import Answered

METRICS: dict[str, AnswerMetric] = {
    "number": number.METRIC,
    "exact": normalised.METRIC,
    "choice": choice.METRIC,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cosine(ComparingReward):
    """From `right_short` to `right_long`, or from `wrong_short` to `wrong_long`."""

    name: ClassVar[str] = "cosine"

    right_by: str = knob("number", choices=tuple(METRICS))
    tokens: int = knob(256, unit="tokens", minimum=1, maximum=1_048_576)
    right_short: float = knob(1.0, minimum=-100.0, maximum=100.0)
    right_long: float = knob(0.5, minimum=-100.0, maximum=100.0)
    wrong_short: float = knob(-1.0, minimum=-100.0, maximum=100.0)
    wrong_long: float = knob(-0.5, minimum=-100.0, maximum=100.0)

    @property
    def metric(self) -> AnswerMetric:
        """By which it is told whether an answer is right."""
        return METRICS[self.right_by]

    def judge(self, answered: Answered) -> float | None:
        """See RowReward."""
        right = ComparingReward.judge(self, answered)
        if right is None:
            return None
        short, long = (self.right_short, self.right_long) if right else (self.wrong_short, self.wrong_long)
        turned = math.cos(math.pi * min(1.0, answered.length_tokens / self.tokens))
        return long + (short - long) * (1 + turned) / 2
