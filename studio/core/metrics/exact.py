"""The answer is, but for white space around it, exactly the expected one."""

from __future__ import annotations

from studio.core.metrics.metric import AnswerMetric, mark


def is_exact(given: str, wanted: str) -> bool:
    """Return whether an answer is, but for white space around it, exactly the expected one."""
    return given.strip() == wanted.strip()


METRIC = AnswerMetric(
    name="exact", count=lambda row, settings: mark(is_exact(row.given, row.expected)), suits=lambda rows: True
)
