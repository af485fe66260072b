"""What a judge, another model, says of the answer by a written rubric."""

from __future__ import annotations

from studio.core.metrics.metric import AnswerMetric

METRIC = AnswerMetric(
    name="judge",
    count=lambda row, settings: None if row.verdict is None else (row.verdict, 1.0),
    decides=False,
    needs="judge",
    needs_expected=lambda settings: False,
)
