"""How likely the model holds the expected answers: e to the mean loss of their tokens (Jelinek et al., 1977)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings


def _count(row: AnsweredRow, settings: MetricSettings) -> Counts | None:
    return None if row.loss_nats is None or not row.loss_tokens else (row.loss_nats, float(row.loss_tokens))


def _total(sums: Sequence[float]) -> float:
    mean = sums[0] / sums[1]
    return math.exp(mean) if mean < 700 else math.inf


METRIC = AnswerMetric(
    name="perplexity",
    count=_count,
    total=_total,
    better="lower",
    is_share=False,
    decides=False,
    needs="losses",
    suits=lambda rows: True,
)
