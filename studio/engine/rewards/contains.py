"""The answer holds words: those of the option, or the row's given answer; and does not hold others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.core.metrics.normalised import normalise
from studio.engine.rewards.given_answer import InformedReward, find_expected, take_part
from studio.engine.rewards.reward import Answered


@dataclass(frozen=True, kw_only=True, slots=True)
class Contains(InformedReward):
    """The share of the wanted words that are there, 0 where one of the forbidden ones is."""

    name: ClassVar[str] = "contains"

    words: tuple[str, ...] = knob(())
    forbidden: tuple[str, ...] = knob(())

    @property
    def needs_expected(self) -> bool:
        """Whether it compares with the row's given answer: where no words are named."""
        return not (self.words or self.forbidden)

    def judge(self, answered: Answered) -> float | None:
        """See RowReward."""
        said = normalise(take_part(answered.answer) or "")
        wanted = self.words
        if self.needs_expected:
            expected = find_expected(answered.columns, self.column)
            if expected is None:
                return None
            wanted = (expected,)
        if any(normalise(words) in said for words in self.forbidden):
            return 0.0
        return sum(normalise(words) in said for words in wanted) / len(wanted) if wanted else 1.0
