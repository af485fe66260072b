"""The demo of rewards: a model that is right half of the time becomes right by trying."""

from __future__ import annotations

import pytest

from studio.core.json_file import parse_json
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
def test_what_is_right_half_of_the_time_becomes_right_by_trying(desk):
    """Two cores, quiet: 70 s."""

    def follow(run: str, after: int):
        while desk.runs.active == run:
            desk.runs.events(run, after=10**9, wait_s=0.2)
        return desk.runs.read(run)

    record, found, lines = run_reward_demo(desk, "", follow, lambda *told: None)
    assert record.state == "finished" and found["held_out"] == 120 and lines
    assert found["accuracy_before"] <= 0.6 and found["accuracy_after"] >= 0.95
    assert is_of_demo(desk, record.run, ROWS)
    again, same, _ = run_reward_demo(desk, record.run, follow, lambda *told: None)
    assert again.run == record.run and same == found
