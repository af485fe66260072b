"""chrF2: how many character n-grams, n 1 to 6, are those of the expected answer, recall twice as heavy (Popović, 2015).

Of all rows together it is sacrebleu's corpus score, of one row its sentence score, as 0..1: counts are summed first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings
from studio.core.metrics.rouge_l import is_prose

ORDER = 6
BETA_SQUARED = 4


def _count(row: AnsweredRow, settings: MetricSettings) -> Counts | None:
    """(n-grams given, expected, common) for n = 1..6; white space does not count."""
    given, expected = "".join(row.given.split()), "".join(row.expected.split())
    counts: list[float] = []
    for n in range(1, ORDER + 1):
        found, right = (Counter(w[i : i + n] for i in range(len(w) - n + 1)) for w in (given, expected))
        wanted = right.total()
        # sacrebleu counts no n-grams of an answer where the expected one has none.
        counts += [found.total() if wanted else 0, wanted, (found & right).total()]
    return tuple(counts)


def _total(sums: Sequence[float]) -> float:
    """F over the means of precision and recall, of those n that both sides have (sacrebleu's effective order)."""
    pairs = [
        (common / given, common / right)
        for given, right, common in zip(sums[::3], sums[1::3], sums[2::3], strict=True)
        if given and right
    ]
    if not pairs:
        return 0.0
    precision, recall = (sum(part) / len(pairs) for part in zip(*pairs, strict=True))
    below = BETA_SQUARED * precision + recall
    return (1 + BETA_SQUARED) * precision * recall / below if below else 0.0


METRIC = AnswerMetric(name="chrf", count=_count, total=_total, decides=False, suits=is_prose)
