"""The answer holds the expected one somewhere, both normalised."""

from __future__ import annotations

from studio.core.metrics.metric import AnswerMetric, mark
from studio.core.metrics.normalised import normalise

METRIC = AnswerMetric(
    name="contains",
    count=lambda row, settings: mark(normalise(row.expected) in normalise(row.given)),
)
