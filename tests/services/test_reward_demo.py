"""The demo of rewards: a model that is right at times becomes right by trying."""

from __future__ import annotations

from functools import partial

import pytest

from studio.core.events import EvalLogged, StepLogged, Warned
from studio.core.json_file import parse_json
from studio.core.recipe import RewardSpec, change_recipe
from studio.services.demo import read_held_out
from studio.services.demo_runs import is_of_demo
from studio.services.reward_demo import ROWS, make_start, make_trying, run_reward_demo


@pytest.fixture
def desk(know_machine, tmp_path):
    from studio.services.desk import Desk

    desk = Desk(know_machine(tmp_path / "workspace"), keep_queue=False)
    yield desk
    desk.close()


class Record:
    """What a run leaves, as far as the next one looks at it."""

    run, artifact = "beginning-1", "adapter"


def follow(desk, run: str, after: int = 0):
    """Return the record of a run that has ended."""
    while desk.runs.active == run:
        desk.runs.events(run, after=10**9, wait_s=0.2)
    return desk.runs.read(run)


def test_its_questions_hold_no_answer_that_could_be_copied(desk):
    start, trying = make_start(desk), make_trying(desk, Record)
    with open(trying.data.source, encoding="utf-8") as file:
        rows = [parse_json(line) for line in file]
    assert len(rows) == 400 and {*rows[0]} == {"prompt", "answer"} and len(rows[0]["prompt"]) == 1
    held_out = {prompt[-1]["content"] for prompt in read_held_out()[0]}
    assert not held_out & {row["prompt"][0]["content"] for row in rows}
    assert trying.objective == "grpo" and trying.rewards[0].name == "exact"
    for recipe in (start, trying):
        problems = desk.recipes.check(recipe)
        assert [
            one.message.id for one in problems if one.severity == "error" and one.field != "model.adapter"
        ] == []


@pytest.mark.patient
def test_what_is_right_at_times_becomes_right_by_trying(desk):
    """Two cores, of which others took most: 173 s."""
    how = partial(follow, desk), lambda *told: None
    record, found, lines = run_reward_demo(desk, "", *how)
    assert record.state == "finished" and found["held_out"] == 120 and lines
    assert found["accuracy_before"] <= 0.6 and found["accuracy_after"] >= 0.95
    assert is_of_demo(desk, record.run, ROWS)
    again, same, _ = run_reward_demo(desk, record.run, *how)
    assert again.run == record.run and same == found


@pytest.mark.patient
def test_a_reward_for_brevity_is_found_out_before_much_is_lost_and_the_best_is_kept(desk):
    """The hacking drill: JSON counts less than being short. Two cores, quiet: 60 s."""
    start = follow(
        desk, desk.queue.start(change_recipe(make_start(desk), {"optim.max_steps": 40}), checked=True)
    )
    rewards = (
        RewardSpec(name="regex", options={"pattern": r"\{"}),
        RewardSpec(name="length", options={"shape": "at_most", "tokens": 30}),
    )
    changes = {"rewards": rewards, "optim.learning_rate": 1.5e-4, "optim.max_steps": 8, "run.eval_every": 1}
    run = desk.queue.start(
        change_recipe(make_trying(desk, start), changes | {"run.scored_rows": 40}), checked=True
    )
    record = follow(desk, run)
    events = list(desk.runs.events(run))
    held_out = {one.step: one.metrics["exact"] for one in events if isinstance(one, EvalLogged)}
    told = [one for one in events if isinstance(one, Warned) and one.message.id.startswith("alarm.hacking")]
    assert held_out[0] >= 0.9 and min(held_out.values()) < 0.5, "the reward led nowhere"
    assert told and held_out[told[0].step] > held_out[0] - 0.2
    assert record.state == "finished" and record.scores[0].value >= held_out[0] - 0.05
    steps = [one.metrics["reward"] for one in events if isinstance(one, StepLogged)]
    assert steps[-1] > steps[0], "the reward rose all the while"
