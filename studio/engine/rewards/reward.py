"""What a reward is: sampled answers in, one number for each out; and several of them as one weighted sum.

    total = sum over rewards of weight * score        advantages are made of totals, by the objective

A reward that does not judge an answer says None. Two things are told apart there: None by choice (the row is not its
business) leaves the sum to the others; a score that could not be had (an exception, a time limit, a number that is
none) leaves the whole answer out, since a sum without it is no smaller reward but an unknown one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.engine.guarded_code.pool import Failed

MOST_FAILED = 0.2
"""Share of the latest answers without a score for a fault of the reward, above which a run stops."""
LATEST, LEAST_JUDGED = 200, 20
"""Answers that the share is taken of, and how many there must be: of three one proves little."""
SHOWN_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """One sampled answer to be judged."""

    prompt: tuple[Mapping[str, object], ...]
    """The messages before the answer: role, content."""
    answer: str
    """As decoded, without the end token."""
    columns: Mapping[str, object] = field(default_factory=dict)
    """The row's further columns, as the data have them."""
    length_tokens: int = 0
    ended: bool = True
    """By its end token; False: cut at the limit."""


@runtime_checkable
class Reward(Protocol):
    """One way to judge answers."""

    name: str

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """Return a score for each of `answers`; None where this reward does not judge it, Failed where it could not."""
        ...


class RowReward:
    """A reward of the library: a frozen dataclass whose fields are its options (`knob`), judging answer by answer."""

    name: ClassVar[str]
    needs_expected: ClassVar[bool] = False
    """Whether the row's given answer is to score higher than another's."""
    runs_code: ClassVar[bool] = False
    """Whether it runs code that the studio did not write: a person's, or the model's."""

    def opened(self, folder: Path, seed: int) -> AbstractContextManager[Reward]:
        """Return this reward ready to judge; one that holds processes or a model ends them on leaving."""
        return nullcontext(self)

    def find_given(self, columns: Mapping[str, object]) -> str | None:
        """Return the answer that a row gives for this reward, None where it looks for none, or finds none."""
        return None

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """See Reward."""
        return [self.judge(answered) for answered in answers]

    def judge(self, answered: Answered) -> float | None:
        """Return the score of one answer, None where it says nothing of it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Scores:
    """What all rewards of a run say of one answer."""

    per_reward: tuple[float | None, ...]
    total: float
    """The weighted sum; nan where no reward judges the answer, or one could not: it is then left out of its group."""
    notes: tuple[str, ...] = ()
    """`NAME: KIND: detail` of each reward that could not; the kinds are those of Failed."""


class RewardSet:
    """The rewards of a run, open. One thread at a time may ask."""

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        self._rewards = tuple(rewards)
        self.names: tuple[str, ...] = name_apart([reward.name for reward in rewards])
        self.weights: tuple[float, ...] = tuple(weights)
        self._failures: list[deque[bool]] = [deque(maxlen=LATEST) for _ in rewards]
        self._last: dict[str, tuple[Answered, Failed]] = {}

    def score(self, answers: Sequence[Answered], *, strict: bool = True) -> list[Scores]:
        """Return the Scores of each of `answers`.

        Raises StudioError, with the answer at hand, when a reward could not judge over MOST_FAILED of the latest ones,
        unless it is not `strict`.
        """
        columns = []
        for reward, name, failures in zip(self._rewards, self.names, self._failures, strict=True):
            scores = [finite(score) for score in reward.score(answers)]
            assert len(scores) == len(answers), name
            for answered, score in zip(answers, scores, strict=True):
                failures.append(isinstance(score, Failed))
                if isinstance(score, Failed):
                    self._last[name] = answered, score
            if strict and len(failures) >= LEAST_JUDGED and sum(failures) > MOST_FAILED * len(failures):
                raise _refuse(name, *self._last[name], sum(failures), len(failures))
            columns.append(scores)
        return [self._sum(row) for row in zip(*columns, strict=True)] if columns else []

    def _sum(self, row: Sequence[float | None | Failed]) -> Scores:
        failed = [(name, one) for name, one in zip(self.names, row, strict=True) if isinstance(one, Failed)]
        per_reward = tuple(None if isinstance(one, Failed) else one for one in row)
        known = [w * score for w, score in zip(self.weights, per_reward, strict=True) if score is not None]
        total = math.fsum(known) if known and not failed else math.nan
        notes = tuple(f"{name}: {one.kind}: {one.detail}".rstrip(": ") for name, one in failed)
        return Scores(per_reward, total, notes)


def finite(score: float | None | Failed) -> float | None | Failed:
    """Return `score`; Failed for nan and infinities."""
    if isinstance(score, (int, float)) and not math.isfinite(score):
        return Failed("not_finite", str(score))
    return float(score) if isinstance(score, (int, float)) else score


def name_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names`, each only once: the second `regex` is `regex_2`."""
    return tuple(
        name if name not in names[:place] else f"{name}_{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    )


def _refuse(name: str, answered: Answered, reason: Failed, failed: int, judged: int) -> StudioError:
    question = str(answered.prompt[-1].get("content", "")) if answered.prompt else ""
    why = text(
        "reward.failing.why",
        reason=text(f"reward.failed.{reason.kind}", detail=reason.detail[:SHOWN_CHARACTERS]),
        prompt=question[-SHOWN_CHARACTERS:],
        answer=answered.answer[-SHOWN_CHARACTERS:],
    )
    what = text("reward.failing", name=name, failed=failed, judged=judged)
    return StudioError(what, why, text("reward.failing.fix"), exit_code=1)
