"""Signs of a reward that is pleased rather than earned: which of them a run of figures shows, and which it does not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from studio.core.events import EvalLogged, StepLogged
from studio.core.i18n import load_catalogue
from studio.engine.rollouts.alarms import RolloutAlarms

CALM = {
    "reward": 0.5, "completions/mean_length": 40.0, "completions/clipped_ratio": 0.0, "completions/distinct": 0.9,
    "completions/repeated": 0.01, "entropy": 0.6, "frac_reward_zero_std": 0.2, "drawn/exact": 0.5,
    "sampling/sampling_logp_difference/mean": 1e-6,
}  # fmt: skip


def hear(rollouts: list[dict[str, float]], weights: dict[str, float] | None = None) -> list[tuple[int, str]]:
    """Return which alarms came at which rollout, each of which is CALM but for what it names."""
    alarms, found = RolloutAlarms(8, weights or {"exact": 1.0}), []
    for step, changes in enumerate(rollouts, 1):
        found += [(step, said.id) for said in alarms.hear(make_step(step, changes))]
    return found


def make_step(step: int, changes: dict[str, float]) -> StepLogged:
    given: dict[str, Any] = {"total_steps": 99, "epoch": 0.0, "loss": 0.0, "lr": 0.0, "grad_norm": 0.0}
    return StepLogged(step=step, tokens_per_s=1.0, metrics=CALM | changes, **given)


def test_a_run_that_learns_is_left_alone():
    assert hear([{"reward": 0.3 + i / 50, "drawn/exact": 0.3 + i / 50} for i in range(30)]) == []
    told = 0
    for seed in range(
        20
    ):  # what drawn answers are worth hangs on their prompts; the reward rises all the while
        chance = random.Random(seed)
        told += (
            hear([{"reward": 0.5 + i / 400, "drawn/exact": chance.gauss(0.5, 0.08)} for i in range(40)]) != []
        )
    assert told <= 3
    wobble = [0.5, 0.42, 0.56, 0.47, 0.6, 0.44, 0.55, 0.5] * 4
    assert hear([{"reward": one, "drawn/exact": one} for one in wobble]) == []


@pytest.mark.parametrize(
    ("changes", "alarm", "at"),
    [
        (lambda i: {"reward": 0.5 + i / 20, "drawn/exact": 0.5 - i / 20}, "alarm.hacking.drawn", 10),
        (lambda i: {"reward": 0.5 + i / 20, "drawn/exact": 0.5 if i < 2 else 0.05}, "alarm.hacking.drawn", 4),
        (lambda i: {"completions/mean_length": 40 + 4.0 * i}, "alarm.longer", 8),
        (lambda i: {"completions/mean_length": 40 - 4.0 * i}, "alarm.shorter", 8),
        (lambda i: {"completions/clipped_ratio": i / 10}, "alarm.cut", 6),
        (lambda i: {"entropy": 0.6 / (1 + i)}, "alarm.entropy", 7),
        (lambda i: {"frac_reward_zero_std": 0.9}, "alarm.equal", 5),
        (lambda i: {"completions/distinct": 1 / 8 if i == 3 else 0.9}, "alarm.distinct", 4),
        (lambda i: {"completions/repeated": 0.05 * i}, "alarm.repeated", 6),
        (lambda i: {"kl": 0.1 * i}, "alarm.drift", 7),
        (lambda i: {"sampling/sampling_logp_difference/mean": 0.05}, "alarm.apart", 1),
    ],
)
def test_each_sign_is_told_once_and_in_time(changes, alarm, at):
    found = hear([changes(i) for i in range(12)])
    assert [one for _, one in found] == [alarm] and found[0][0] <= at
    for language in ("en", "zh-CN"):
        assert load_catalogue(language).words[alarm]


def test_a_model_that_is_right_may_be_sure():
    assert hear([{"entropy": 0.6 / (1 + i), "drawn/exact": min(1.0, 0.5 + i / 10)} for i in range(12)]) == []


def test_a_fall_that_the_reward_shares_is_no_hacking():
    assert hear([{"reward": 0.5 - i / 40, "drawn/exact": 0.5 - i / 40} for i in range(15)]) == []


def test_one_reward_that_decides_alone_is_named():
    weights = {"exact": 1.0, "brief": 3.0}
    found = hear([{"rewards/exact/std": 0.3, "rewards/brief/std": 0.9}], weights)
    assert found == [(1, "alarm.one")]
    assert hear([{"rewards/exact/std": 0.6, "rewards/brief/std": 0.3}], weights) == []


def test_held_out_answers_that_fall_while_the_reward_rises_are_told_and_a_checkpoint_keeps_what_was_heard():
    alarms = RolloutAlarms(8, {"exact": 1.0})

    def judge(step: int, exact: float, reward: float) -> list[str]:
        metrics = {"exact": exact, "reward": reward, "completions/mean_length": 9.0}
        return [one.id for one in alarms.hear(EvalLogged(step=step, loss=-reward, metrics=metrics))]

    assert judge(5, 0.6, 0.5) == [] and judge(10, 0.55, 0.7) == []
    kept = alarms.state_data()
    assert judge(15, 0.48, 0.8) == ["alarm.hacking.held_out"] and judge(20, 0.1, 0.9) == []
    again = RolloutAlarms(8, {"exact": 1.0})
    again.load_state_data(kept)
    metrics = {"exact": 0.48, "reward": 0.8}
    assert [one.id for one in again.hear(EvalLogged(step=15, loss=0.0, metrics=metrics))] == [
        "alarm.hacking.held_out"
    ]
