"""Which metrics suit given answers, where nobody chose."""

from __future__ import annotations

from collections.abc import Sequence

from studio.core.metrics import METRICS
from studio.core.metrics.metric import AnsweredRow, AnswerMetric

ANSWER_METRICS = tuple(metric.name for metric in METRICS if metric.needs == "answers")
"""Names of those that look at the answer alone."""


def suggest_metrics(rows: Sequence[AnsweredRow], needs: Sequence[str]) -> tuple[AnswerMetric, ...]:
    """Return the metrics that suit the questions and expected answers of `rows` and need one of `needs` alone."""
    return tuple(metric for metric in METRICS if metric.needs in needs and rows and metric.suits(rows))
