"""What an answer is compared with, and which part of it: the row's given answer, and the words behind the thinking."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.core.metrics.metric import AnsweredRow, AnswerMetric, MetricSettings
from studio.data.formats.aliases import EXPECTED
from studio.data.formats.column_names import simplify
from studio.engine.rewards.reward import Answered, RowReward

THOUGHT_ENDS = "</think>"


def find_expected(columns: Mapping[str, object], column: str = "") -> str | None:
    """Return the row's given answer as words: `column`, or the first one named as given answers are; None without one.

    verl's `reward_model: {ground_truth: ...}` is opened; a number or an object is written as JSON.
    """
    if column:
        return write_plainly(columns.get(column))
    by_name = {simplify(name): value for name, value in columns.items()}
    found = (write_plainly(by_name.get(simplify(name))) for name in EXPECTED)
    return next((words for words in found if words is not None), None)


def add_expected(columns: Mapping[str, object], expected: str | None) -> Mapping[str, object]:
    """Return `columns` in which find_expected() finds `expected`: where its column has a name of its own, as "answer".

    What a person mapped to the answer, or the last turn of an example, is then found as any other given answer.
    """
    if expected is None or find_expected(columns) is not None:
        return columns
    return {**columns, "answer": expected}


def write_plainly(value: object) -> str | None:
    """Return a cell as words, None for an empty one."""
    if isinstance(value, Mapping) and "ground_truth" in value:
        value = value["ground_truth"]
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def take_part(answer: str, tag: str = "") -> str | None:
    """Return what of `answer` is judged: what follows the thinking, of that what the last <tag>...</tag> holds.

    None where a tag is wanted and is not there whole.
    """
    said = answer.rpartition(THOUGHT_ENDS)[2]
    if not tag:
        return said.strip()
    name = re.escape(tag)
    found = re.findall(rf"<{name}>((?:(?!<{name}>).)*?)</{name}>", said, re.S)
    return found[-1].strip() if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class InformedReward(RowReward):
    """A reward that may look at the row's given answer."""

    column: str = knob("")

    def find_given(self, columns: Mapping[str, object]) -> str | None:
        """See RowReward."""
        return find_expected(columns, self.column)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparingReward(InformedReward):
    """A reward that holds an answer against the row's given one, by a metric of core/metrics, as `eval` does."""

    needs_expected: ClassVar[bool] = True
    metric: ClassVar[AnswerMetric]

    tag: str = knob("")

    @property
    def settings(self) -> MetricSettings:
        """What the metric is told."""
        return MetricSettings()

    def judge(self, answered: Answered) -> float | None:
        """See RowReward: the metric's value of the row; 0 where the wanted tag is missing."""
        expected = find_expected(answered.columns, self.column)
        if expected is None:
            return None
        given = take_part(answered.answer, self.tag)
        question = str(answered.prompt[-1].get("content", "")) if answered.prompt else ""
        counts = self.metric.count(
            AnsweredRow(given=given or "", expected=expected, prompt=question), self.settings
        )
        return None if counts is None else self.metric.total(counts) * (given is not None)
