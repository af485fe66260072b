"""How good answers are: one module a metric. Here is no model: what one has to say comes with the row."""

from studio.core.metrics import (
    choice,
    chrf,
    contains,
    exact,
    json_fields,
    judge,
    normalised,
    number,
    perplexity,
    regex,
    rouge_l,
)
from studio.core.metrics.metric import AnswerMetric

METRICS: tuple[AnswerMetric, ...] = (
    exact.METRIC,
    normalised.METRIC,
    contains.METRIC,
    regex.METRIC,
    number.METRIC,
    choice.METRIC,
    json_fields.METRIC,
    rouge_l.METRIC,
    chrf.METRIC,
    perplexity.METRIC,
    judge.METRIC,
)
