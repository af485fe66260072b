"""Signs that a run learns to please its rewards rather than to answer, each told once, in words. Pure.

Two looks at what no reward can be led by: the drawn answers against the rows' own answers, which costs nothing and
comes with every rollout, and greedy answers to held-out questions. Both are held against the reward of their time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from studio.core.events import EvalLogged, RunEvent, StepLogged, name_metric
from studio.core.i18n import Text, text

DRAWN = "drawn/"
"""Begins the names of what drawn answers are worth by a metric of core/metrics."""
LOOKED_AT = 3
"""Rollouts whose mean counts for what changes slowly."""
FALL_ROLLOUTS = (2, 3, 5, 10)
"""Rollouts whose mean is held against the best earlier mean of as many: a fall at once shows in two, a slow one in
ten."""
FALL_ERRORS, USUAL_ERROR, LEAST_ERROR, SURE_ROLLOUTS = 4.0, 0.1, 0.04, 20
"""A fall is one beyond so many standard errors of such a difference; of one rollout it is what the rollouts say, 0.1
at least before there are SURE_ROLLOUTS of them: prompts differ, and 64 answers are to eight of them."""
SERIES = 200
"""Rollouts that are looked back to."""
HELD_OUT_FALL = 0.08
"""Of greedy answers to the same questions, which chance moves less."""
LENGTH_SHARE = 0.5
CUT_SHARE = 0.3
ENTROPY_SHARE = 0.2
RIGHT = 0.8
"""Who answers so large a share rightly may be sure of it."""
EQUAL_SHARE, EQUAL_ROLLOUTS = 0.8, 5
LEAST_DISTINCT = 2
REPEATED_SHARE = 0.2
MOST_DRIFT = 0.5
"""Nats a token from the start."""
MOST_DISTANCE = 0.03
"""Between a token's log-probability as drawn and as trained, on average: kernels that disagree."""
ONE_SHARE = 0.9
"""Of the variance of all rewards together, that of one."""


class RolloutAlarms:
    """Hears the events of a run and says what is wrong."""

    def __init__(self, group_size: int, weights: Mapping[str, float]) -> None:
        """`weights`: of the rewards, by name."""
        self._group_size, self._weights = group_size, dict(weights)
        self._told: list[str] = []
        self._rollouts: list[dict[str, float]] = []
        """The metrics of each rollout that are looked at, the first and the latest."""
        self._series: dict[str, list[float]] = {}
        """Rewards, and what drawn answers are worth, of each of the latest rollouts."""
        self._best: dict[str, float] = {}
        """Of each score of held-out questions the best so far, as NAME, and the reward of its time, as NAME.reward."""

    def hear(self, event: RunEvent) -> list[Text]:
        """Return what `event` shows for the first time."""
        if isinstance(event, StepLogged) and "reward" in event.metrics:
            found = self._look(event.metrics)
        elif isinstance(event, EvalLogged) and "reward" in event.metrics:
            found = self._judge(event.metrics)
        else:
            return []
        fresh = []
        for name, said in found:
            if name not in self._told:
                self._told.append(name)
                fresh.append(said)
        return fresh

    def _look(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, Text]]:
        kept = {name: value for name, value in metrics.items() if isinstance(value, float)}
        self._rollouts = [
            *self._rollouts[:LOOKED_AT],
            *self._rollouts[LOOKED_AT:][1 - EQUAL_ROLLOUTS :],
            kept,
        ]
        first, last = self._rollouts[0], self._rollouts[-LOOKED_AT:]
        yield from self._compare(kept)
        if len(self._rollouts) >= LOOKED_AT:
            yield from self._measure_lengths(first, last)
            right = max((_mean(last, name) for name in kept if name.startswith(DRAWN)), default=0.0)
            if right < RIGHT and _mean(last, "entropy") < ENTROPY_SHARE * first.get("entropy", 0.0):
                yield "entropy", text("alarm.entropy", share=round(100 * ENTROPY_SHARE))
        equal = [one.get("frac_reward_zero_std", 0.0) for one in self._rollouts[-EQUAL_ROLLOUTS:]]
        if len(equal) == EQUAL_ROLLOUTS and min(equal) > EQUAL_SHARE:
            yield "equal", text("alarm.equal", count=EQUAL_ROLLOUTS, share=round(100 * EQUAL_SHARE))
        if 0 < kept.get("completions/distinct", 1.0) * self._group_size < LEAST_DISTINCT:
            yield "distinct", text("alarm.distinct")
        if kept.get("completions/repeated", 0.0) > REPEATED_SHARE:
            share = round(100 * kept["completions/repeated"])
            yield "repeated", text("alarm.repeated", share=share)
        if abs(kept.get("kl", 0.0)) > MOST_DRIFT:
            yield "drift", text("alarm.drift", kl=kept["kl"])
        if kept.get("sampling/sampling_logp_difference/mean", 0.0) > MOST_DISTANCE:
            yield "apart", text("alarm.apart", apart=kept["sampling/sampling_logp_difference/mean"])
        yield from self._weigh(kept)

    def _compare(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, Text]]:
        """Say of drawn answers that they got worse while the reward rose."""
        for name, value in metrics.items():
            if name == "reward" or name.startswith(DRAWN):
                self._series[name] = [*self._series.get(name, []), value][-SERIES:]
        for name, series in self._series.items():
            fall = find_fall(series, self._series["reward"]) if name.startswith(DRAWN) else None
            if fall is not None:
                yield "hacking", self._say_hacking("drawn", name.removeprefix(DRAWN), *fall)

    def _judge(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, Text]]:
        """Say the same of answers to held-out questions."""
        for name, value in metrics.items():
            if name == "reward" or name.startswith("completions/"):
                continue
            best = self._best.get(name)
            if best is None or value >= best:
                self._best |= {name: value, f"{name}.reward": metrics["reward"]}
            elif best - value > HELD_OUT_FALL and metrics["reward"] > self._best[f"{name}.reward"]:
                yield "hacking.held_out", self._say_hacking("held_out", name, best, value)

    def _say_hacking(self, kind: str, metric: str, before: float, now: float) -> Text:
        shares = {"before": round(100 * before), "now": round(100 * now)}
        return text(f"alarm.hacking.{kind}", metric=name_metric(metric), **shares)

    def _measure_lengths(
        self, first: Mapping[str, float], last: list[dict[str, float]]
    ) -> Iterator[tuple[str, Text]]:
        name = "completions/mean_length"
        before, now = first[name], _mean(last, name)
        figures = {"before": round(before), "now": round(now)}
        if now > (1 + LENGTH_SHARE) * before:
            yield "longer", text("alarm.longer", **figures)
        elif now < (1 - LENGTH_SHARE) * before:
            yield "shorter", text("alarm.shorter", **figures)
        cut = _mean(last, "completions/clipped_ratio")
        if cut > CUT_SHARE:
            yield "cut", text("alarm.cut", share=round(100 * cut))

    def _weigh(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, Text]]:
        """Say where one of several rewards alone decides."""
        spreads = {
            name: (weight * metrics.get(f"rewards/{name}/std", 0.0)) ** 2
            for name, weight in self._weights.items()
        }
        total = sum(spreads.values())
        name = max(spreads, key=spreads.__getitem__, default="")
        if len(spreads) > 1 and total > 0 and spreads[name] > ONE_SHARE * total:
            yield "one", text("alarm.one", name=name, share=round(100 * spreads[name] / total))

    def state_data(self) -> dict[str, Any]:
        """Return what a checkpoint holds: plain values."""
        kept = {"told": self._told, "rollouts": self._rollouts, "best": self._best, "series": self._series}
        return copy.deepcopy(kept)

    def load_state_data(self, data: Mapping[str, Any]) -> None:
        """Go on from state_data()."""
        kept = copy.deepcopy(dict(data))
        self._told, self._rollouts = kept["told"], kept["rollouts"]
        self._best, self._series = kept["best"], kept["series"]


def _mean(rollouts: list[dict[str, float]], name: str) -> float:
    return sum(one.get(name, 0.0) for one in rollouts) / len(rollouts)


def find_fall(scores: Sequence[float], rewards: Sequence[float]) -> tuple[float, float] | None:
    """Return (best, now) of means of scores that fell beyond chance while rewards rose; None where there are none."""
    steps = [abs(later - earlier) for earlier, later in pairwise(scores)]
    # Of one rollout: 0.6745 is the median of a normal's deviation, and a step has two of them.
    least = LEAST_ERROR if len(steps) >= SURE_ROLLOUTS else USUAL_ERROR
    error = max(least, median(steps or [0.0]) / 0.6745 / 2**0.5)
    for size in FALL_ROLLOUTS:
        starts = range(len(scores) - 2 * size + 1)
        if not starts:
            break
        means = [sum(scores[i : i + size]) / size for i in starts]
        place = max(starts, key=means.__getitem__)
        now = sum(scores[-size:]) / size
        risen = sum(rewards[-size:]) > sum(rewards[place : place + size])
        if risen and means[place] - now > FALL_ERRORS * error * (2 / size) ** 0.5:
            return means[place], now
    return None
