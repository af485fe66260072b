"""One way to say how good answers are: what a row gives, and what rows give together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredRow:
    """One question with what was answered and what was given as the right answer."""

    given: str
    expected: str
    prompt: str = ""
    loss_nats: float | None = None
    """- sum of log p of the expected answer's tokens; None where it was not measured."""
    loss_tokens: int = 0
    verdict: float | None = None
    """What a judge says, 0..1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSettings:
    """What a person can say about metrics."""

    pattern: str = ""
    """regex: what every answer must hold; "" lets each given answer be the pattern."""
    tolerance: float = 1e-6
    """number: how far apart two may be, as a share of the larger one; below 1 absolutely."""


Counts = tuple[float, ...]
"""What a row adds: sums of them over rows are all that a metric's value is made of."""


def share(sums: Sequence[float]) -> float:
    """Return the mean of rows that count (value, 1)."""
    return sums[0] / sums[1] if sums[1] else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerMetric:
    """How good answers are. Its label is the text `metric.NAME`."""

    name: str
    count: Callable[[AnsweredRow, MetricSettings], Counts | None]
    """What one row adds; None where the row says nothing, such as a number where none was given."""
    total: Callable[[Sequence[float]], float] = share
    """The value of summed counts: of one row, of all, of any drawn again."""
    better: Literal["higher", "lower"] = "higher"
    is_share: bool = True
    """Whether values lie in 0..1 and are shown in percent."""
    decides: bool = True
    """Whether a row is right or wrong by it, right where its value is 1."""
    needs: Literal["answers", "losses", "judge"] = "answers"
    needs_expected: Callable[[MetricSettings], bool] = lambda settings: True
    """Whether rows without a given answer say nothing."""
    suits: Callable[[Sequence[AnsweredRow]], bool] = lambda rows: False
    """Whether it is worth a look for rows with these questions and expected answers, where nobody chose."""


def mark(right: bool) -> Counts:
    """Return the counts of a row that is right or wrong."""
    return (float(right), 1.0)


def most(rows: Sequence[AnsweredRow], test: Callable[[AnsweredRow], bool], least: float = 0.9) -> bool:
    """Return whether at least that share of some of `rows` passes `test`; False without rows."""
    looked = rows[:200]
    return bool(looked) and sum(map(test, looked)) >= least * len(looked)
