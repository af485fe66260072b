"""The answer holds what a regular expression describes: one for all rows, or each row's given answer."""

from __future__ import annotations

import re
from functools import lru_cache

from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings, mark


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return the compiled pattern, None for one that is no regular expression."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def _count(row: AnsweredRow, settings: MetricSettings) -> Counts | None:
    found = compile_pattern(settings.pattern or row.expected.strip())
    return None if found is None else mark(found.search(row.given) is not None)


METRIC = AnswerMetric(name="regex", count=_count, needs_expected=lambda settings: not settings.pattern)
