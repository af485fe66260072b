"""Rewards tried before training: what they give right, empty, cut and wrong answers, and a model's own.

A reward that scores the row's given answer no higher than another row's teaches nothing, whatever the run costs. Which
form a reward wants (tags, a box) is not known of a person's code: of the FORMS the one is taken in which given answers
win most often, and is told.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from studio.core.i18n import Text, literal, text
from studio.engine.rewards.reward import MOST_FAILED, Answered, RewardSet, Scores

LEAST_WINS = 0.9
"""Share of rows in which the given answer must win."""
MOST_EQUAL = 0.8
"""Share of groups whose answers all score the same, from which there is nothing to learn yet."""
LEAST_CORRELATED = 0.5
BINS = 10
FORMS = ("{}", "<answer>{}</answer>", "<think>\n</think>\n<answer>{}</answer>", "\\boxed{{{}}}", "#### {}")
"""In which forms a given answer is tried; the first is as it is."""
CUT = 0.5
Kind = Literal["given", "other", "empty", "cut", "sample"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRow:
    """A row that rewards are tried on."""

    number: int
    """Its place in the file, from 1."""
    asked: Answered
    """Its prompt and columns; the answer is the given one, "" where there is none."""
    samples: tuple[Answered, ...] = ()
    """What the model answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialCase:
    """One answer that was scored."""

    row: int
    kind: Kind
    answer: str
    scores: Scores
    length_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreHistogram:
    """How many scores lie in each of equal parts from `low` to `high`."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardTrial:
    """What came of it."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    cases: tuple[TrialCase, ...]
    form: str
    """Of FORMS."""
    compared: int
    """Rows whose given answer stood against another row's."""
    wins: float | None
    """The share of these in which it scored higher; None without such rows."""
    sampled: int
    """Answers of the model that have a score."""
    mean: float | None
    histogram: ScoreHistogram | None
    equal_groups: float | None
    """The share of rows whose answers all score the same; None without two answers to a row."""
    deviation: float | None
    """The mean over rows of the standard deviation among a row's answers."""
    length_correlation: float | None
    """Of score and length in tokens; None where one of them never varies."""
    seconds_per_call: float
    """A call scores one answer."""
    repeatable: bool
    """Whether the second time gave the same."""
    failed: int
    """Answers without a score through a fault of a reward."""
    refused: Text | None
    """Why a run with these rewards should not start; None where nothing speaks against it."""
    warnings: tuple[Text, ...]


def try_rewards(
    rewards: RewardSet,
    rows: Sequence[TrialRow],
    *,
    compares: bool,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> RewardTrial:
    """Return what `rewards` give on `rows`. `compares`: whether one of them is meant to look at the given answer.

    Raises nothing for what rewards do: where they fail is part of the answer.
    """
    given = [row for row in rows if row.asked.answer]
    form, pairs = _choose_form(rewards, given) if given else (FORMS[0], [])
    cases = [case for pair in pairs for case in pair if case is not None]
    for kind in ("empty", "cut"):
        cases += _score(rewards, [(row.number, _change(row.asked, kind, form)) for row in given], kind)
    samples = [(row.number, one) for row in rows for one in row.samples]
    subjects = samples or [(row.number, _change(row.asked, "given", form)) for row in given]
    began_s = clock()
    first = rewards.score([one for _, one in subjects], strict=False)
    spent_s = clock() - began_s
    again = first if should_stop() else rewards.score([one for _, one in subjects], strict=False)
    sampled = _join(samples, first, "sample") if samples else []
    cases += sampled
    judged = [case for case in sampled if math.isfinite(case.scores.total)]
    wins = _count_wins(pairs)
    trial = RewardTrial(
        names=rewards.names,
        weights=rewards.weights,
        cases=tuple(cases),
        form=form,
        compared=len(wins),
        wins=sum(wins) / len(wins) if wins else None,
        sampled=len(judged),
        mean=statistics.fmean(case.scores.total for case in judged) if judged else None,
        histogram=count_bins([case.scores.total for case in judged]),
        equal_groups=None,
        deviation=None,
        length_correlation=_correlate(judged),
        seconds_per_call=spent_s / max(1, len(subjects)),
        repeatable=[one.per_reward for one in first] == [one.per_reward for one in again],
        failed=sum(bool(case.scores.notes) for case in cases),
        refused=None,
        warnings=(),
    )
    return _judge(_measure_groups(trial, judged), compares)


def count_bins(totals: Sequence[float]) -> ScoreHistogram | None:
    """Return the ScoreHistogram of `totals`, of one part where they are all the same; None without any."""
    if not totals:
        return None
    low, high = min(totals), max(totals)
    if low == high:
        return ScoreHistogram(low=low, high=high, counts=(len(totals),))
    counts = [0] * BINS
    for total in totals:
        counts[min(BINS - 1, int((total - low) / (high - low) * BINS))] += 1
    return ScoreHistogram(low=low, high=high, counts=tuple(counts))


def _choose_form(
    rewards: RewardSet, rows: Sequence[TrialRow]
) -> tuple[str, list[tuple[TrialCase, TrialCase | None]]]:
    """Return the form in which given answers win most often, with each row's case and that of another row's answer."""
    best: tuple[float, str, list[tuple[TrialCase, TrialCase | None]]] | None = None
    for form in FORMS:
        own = _score(rewards, [(row.number, _change(row.asked, "given", form)) for row in rows], "given")
        others = [_find_other(rows, place) for place in range(len(rows))]
        against = [
            (row.number, dataclasses.replace(row.asked, answer=form.format(other)))
            for row, other in zip(rows, others, strict=True)
            if other is not None
        ]
        found = iter(_score(rewards, against, "other"))
        pairs = [
            (case, next(found) if other is not None else None)
            for case, other in zip(own, others, strict=True)
        ]
        wins = _count_wins(pairs)
        share = sum(wins) / len(wins) if wins else 0.0
        if best is None or share > best[0]:
            best = (share, form, pairs)
        if share == 1.0 or not wins:
            break
    return best[1], best[2]


def _find_other(rows: Sequence[TrialRow], place: int) -> str | None:
    """Return the given answer of the next row that has another one."""
    mine = rows[place].asked.answer.strip()
    following = (*rows[place + 1 :], *rows[:place])
    return next((row.asked.answer for row in following if row.asked.answer.strip() != mine), None)


def _change(asked: Answered, kind: str, form: str) -> Answered:
    answer = form.format(asked.answer)
    if kind == "empty":
        answer = ""
    elif kind == "cut":
        answer = answer[: math.floor(len(answer) * CUT)]
    return dataclasses.replace(asked, answer=answer, ended=kind != "cut")


def _score(rewards: RewardSet, answers: Sequence[tuple[int, Answered]], kind: Kind) -> list[TrialCase]:
    return _join(answers, rewards.score([one for _, one in answers], strict=False), kind)


def _join(answers: Sequence[tuple[int, Answered]], scores: Sequence[Scores], kind: Kind) -> list[TrialCase]:
    return [
        TrialCase(row=row, kind=kind, answer=one.answer, scores=found, length_tokens=one.length_tokens)
        for (row, one), found in zip(answers, scores, strict=True)
    ]


def _count_wins(pairs: Sequence[tuple[TrialCase, TrialCase | None]]) -> list[bool]:
    """Return for each row with another's answer whether its own scored higher; unscored ones lose."""
    return [
        math.isfinite(own.scores.total) and not (own.scores.total <= other.scores.total)
        for own, other in pairs
        if other is not None and not (_says_nothing(own.scores) and _says_nothing(other.scores))
    ]


def _says_nothing(scores: Scores) -> bool:
    """Whether all rewards left the row out by choice."""
    return math.isnan(scores.total) and not scores.notes


def _measure_groups(trial: RewardTrial, judged: Sequence[TrialCase]) -> RewardTrial:
    groups: dict[int, list[float]] = {}
    for case in judged:
        groups.setdefault(case.row, []).append(case.scores.total)
    several = [totals for totals in groups.values() if len(totals) > 1]
    if not several:
        return trial
    return dataclasses.replace(
        trial,
        equal_groups=sum(max(one) == min(one) for one in several) / len(several),
        deviation=statistics.fmean(statistics.stdev(one) for one in several),
    )


def _correlate(judged: Sequence[TrialCase]) -> float | None:
    try:
        return statistics.correlation(
            [case.scores.total for case in judged], [float(case.length_tokens) for case in judged]
        )
    except statistics.StatisticsError:  # fewer than two, or one that never varies
        return None


def _judge(trial: RewardTrial, compares: bool) -> RewardTrial:
    refused, warnings = None, []
    noted = next((case.scores.notes[0] for case in trial.cases if case.scores.notes), "")
    subjects = [case for case in trial.cases if case.kind == "sample"]
    subjects = subjects or [case for case in trial.cases if case.kind == "given"]
    failed = sum(bool(case.scores.notes) for case in subjects)
    if trial.cases and all(math.isnan(case.scores.total) for case in trial.cases):
        refused = text("reward.trial.nothing", note=literal(noted)) if noted else text("reward.trial.silent")
    elif compares and trial.wins is not None and trial.wins < LEAST_WINS:
        refused = text(
            "reward.trial.loses", lost=round((1 - trial.wins) * trial.compared), rows=trial.compared
        )
    elif failed > MOST_FAILED * len(subjects):
        refused = text("reward.trial.fails", count=failed, answers=len(subjects), note=literal(noted))
    elif not trial.cases:
        refused = text("reward.trial.no_rows")
    if trial.failed and refused is None:
        warnings.append(text("reward.trial.failed", count=trial.failed, note=literal(noted)))
    if not compares:
        warnings.append(text("reward.trial.form_alone"))
    elif trial.wins is None:
        warnings.append(text("reward.trial.no_answers"))
    if trial.equal_groups is not None and trial.equal_groups > MOST_EQUAL:
        warnings.append(text("reward.trial.equal", share=round(100 * trial.equal_groups)))
    correlation = trial.length_correlation
    if correlation is not None and abs(correlation) > LEAST_CORRELATED:
        which = "longer" if correlation > 0 else "shorter"
        warnings.append(text(f"reward.trial.{which}", value=f"{correlation:.2f}"))
    if not trial.repeatable:
        warnings.append(text("reward.trial.draws"))
    return dataclasses.replace(trial, refused=refused, warnings=tuple(warnings))
