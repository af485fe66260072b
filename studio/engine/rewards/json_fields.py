"""The answer is JSON: it holds the wanted keys, and its fields are those of the given answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.core.metrics import json_fields
from studio.core.metrics.json_fields import NOTHING, read_object
from studio.core.metrics.metric import AnsweredRow, MetricSettings
from studio.engine.rewards.given_answer import InformedReward, find_expected, take_part
from studio.engine.rewards.reward import Answered


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonFields(InformedReward):
    """`valid` for any JSON, the rest by the share of what is right in it."""

    name: ClassVar[str] = "json"

    keys: tuple[str, ...] = knob(())
    valid: float = knob(0.0, unit="share", minimum=0.0, maximum=1.0)
    tag: str = knob("")

    @property
    def needs_expected(self) -> bool:
        """Whether it compares with the row's given answer: where no keys are named."""
        return not self.keys

    def judge(self, answered: Answered) -> float | None:
        """See RowReward."""
        expected = None if self.keys else find_expected(answered.columns, self.column)
        if self.needs_expected and not isinstance(read_object(expected or ""), (dict, list)):
            return None
        given = take_part(answered.answer, self.tag) or ""
        found = read_object(given)
        if found is NOTHING:
            return 0.0
        if self.keys:
            right = (
                sum(key in found for key in self.keys) / len(self.keys) if isinstance(found, dict) else 0.0
            )
        else:
            counts = json_fields.METRIC.count(
                AnsweredRow(given=given, expected=expected or ""), MetricSettings()
            )
            right = json_fields.METRIC.total(counts) if counts is not None else 0.0
        return self.valid + (1 - self.valid) * right
