"""What an evaluation wants and what comes of it: models, their answers and scores, and what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from studio.core.i18n import Text
from studio.core.metrics import METRICS
from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings
from studio.core.metrics.suggest import suggest_metrics
from studio.core.recipe import Recipe
from studio.data.questions import QuestionSet

BASE, TUNED = "base", "tuned"


@dataclass(frozen=True, slots=True)
class Contender:
    """One model of those that are compared."""

    name: str
    """`tuned`, `base` or `step-40`: what its columns and scores are called."""
    run: str
    checkpoint: str = ""
    side: str = TUNED
    recipe: Recipe | None = None
    """Of a base model alone."""


class AnswerJudge(Protocol):
    """Who reads answers and says how good they are."""

    @property
    def rubric(self) -> str:
        """What tells its verdicts from those of other judges and rubrics."""

    def judge(
        self,
        rows: Sequence[AnsweredRow],
        on_verdict: Callable[[int, Any], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Tell a engine.answer_journal.Judgement for each row by its place. Raises StudioError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationWish:
    """What is to be measured, and how models are asked."""

    metrics: tuple[AnswerMetric, ...] = ()
    """None: those that suit the rows."""
    settings: MetricSettings = field(default_factory=MetricSettings)
    system: str = ""
    max_new_tokens: int = 256
    judge: AnswerJudge | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """What one model did. Mappings go from a row's number."""

    contender: Contender
    answers: Mapping[int, Any]
    """Its engine.answer_journal.WrittenAnswer."""
    refused: Mapping[int, Text]
    """Why a row could not be asked."""
    counts: Mapping[str, Mapping[int, Counts]]
    """By metric: what each row adds."""
    scores: Mapping[str, Any]
    """By metric its engine.confidence.Bounded; those without a row are left out."""


@dataclass(frozen=True, slots=True)
class SideComparison:
    """The first model against another one, over the rows that both have."""

    other: str
    differences: Mapping[str, Any]
    """By metric, the first one's value above the other's."""
    lost: Mapping[str, tuple[int, ...]]
    """By metric that decides: rows that the other has right and the first one wrong."""
    won: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What came of it."""

    questions: QuestionSet
    metrics: tuple[AnswerMetric, ...]
    sides: tuple[Side, ...]
    comparisons: tuple[SideComparison, ...]
    whole: bool
    """False where it was stopped: the same wish goes on."""


def choose_metrics(questions: QuestionSet, *, judged: bool = False) -> tuple[AnswerMetric, ...]:
    """Return the metrics that suit the given answers; none where no answer is given, but for a judge."""
    rows = [
        AnsweredRow(given="", expected=one.expected, prompt=one.prompt)
        for one in questions.asked
        if one.expected is not None
    ]
    judges = tuple(metric for metric in METRICS if judged and metric.needs == "judge")
    return (*suggest_metrics(rows, ("answers", "losses")), *judges)


def measure_side(
    questions: QuestionSet,
    contender: Contender,
    journal: Any,
    refused: Mapping[int, Text],
    metrics: Sequence[AnswerMetric],
    wish: EvaluationWish,
) -> Side:
    """Return what a contender did, by the answers in its engine.answer_journal.AnswerJournal."""
    from studio.engine.confidence import bound_value

    counts: dict[str, dict[int, Counts]] = {metric.name: {} for metric in metrics}
    rubric = wish.judge.rubric if wish.judge is not None else ""
    for one in questions.asked:
        answer, loss = journal.answers.get(one.number), journal.losses.get(one.number)
        if answer is None:
            continue
        verdict = journal.verdicts.get((one.number, rubric))
        row = AnsweredRow(
            given=answer.words,
            expected=one.expected or "",
            prompt=one.prompt,
            loss_nats=loss.nats if loss is not None else None,
            loss_tokens=loss.tokens if loss is not None else 0,
            verdict=verdict.score if verdict is not None else None,
        )
        for metric in metrics:
            if one.expected is None and metric.needs_expected(wish.settings):
                continue
            found = metric.count(row, wish.settings)
            if found is not None:
                counts[metric.name][one.number] = found
    scores = {
        metric.name: bounded
        for metric in metrics
        if (bounded := bound_value(metric, list(counts[metric.name].values()))) is not None
    }
    return Side(contender, dict(journal.answers), refused, counts, scores)


def compare_sides(first: Side, other: Side, metrics: Sequence[AnswerMetric]) -> SideComparison:
    """Return how `first` stands against `other`, row by row."""
    from studio.engine.confidence import bound_difference

    differences, lost, won = {}, {}, {}
    for metric in metrics:
        ours, theirs = first.counts[metric.name], other.counts[metric.name]
        difference = bound_difference(metric, ours, theirs)
        if difference is None:
            continue
        differences[metric.name] = difference
        if metric.decides:
            right = {
                row: (metric.total(ours[row]) >= 1, metric.total(theirs[row]) >= 1)
                for row in sorted(ours.keys() & theirs.keys())
            }
            lost[metric.name] = tuple(row for row, both in right.items() if both == (False, True))
            won[metric.name] = tuple(row for row, both in right.items() if both == (True, False))
    return SideComparison(other.contender.name, differences, lost, won)
