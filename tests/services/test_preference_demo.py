"""The demo of pairs: a style that is wanted is learned, and what was right stays right."""

from __future__ import annotations

import json

import pytest

from studio.core.json_file import parse_json
from studio.core.recipe import LEARNS
from studio.services.demo import read_held_out
from studio.services.demo_runs import is_of_demo
from studio.services.preference_demo import (
    ROWS,
    WANTED_SHARE,
    make_comparison,
    make_start,
    run_preference_demo,
    say_plainly,
)


@pytest.fixture
def desk(know_machine, tmp_path):
    from studio.services.desk import Desk

    desk = Desk(know_machine(tmp_path / "workspace"), keep_queue=False)
    yield desk
    desk.close()


class Record:
    """What a run leaves, as far as the next one looks at it."""

    run, artifact = "styles-1", "adapter"


def read_rows(recipe) -> list[dict]:
    with open(recipe.data.source, encoding="utf-8") as file:
        return [parse_json(line) for line in file]


def test_its_rows_say_each_record_in_both_styles(desk):
    start, comparison = make_start(desk), make_comparison(desk, Record)
    rows, pairs = read_rows(start), read_rows(comparison)
    assert len(rows) == len(pairs) == 400
    wanted = sum(row["messages"][-1]["content"].startswith("{") for row in rows) / len(rows)
    assert wanted == pytest.approx(WANTED_SHARE, abs=0.05)
    for pair in pairs[:20]:
        record = pair["chosen"][0]["content"]
        assert json.loads(record)["name"] in pair["rejected"][0]["content"] == say_plainly(record)
    held_out = {prompt[-1]["content"] for prompt in read_held_out()[0]}
    assert not held_out & {pair["prompt"][0]["content"] for pair in pairs}
    assert comparison.objective in LEARNS["preference"] and comparison.model.adapter.endswith("adapter")
    assert [one.message.id for one in desk.recipes.check(start) if one.severity == "error"] == []


@pytest.mark.patient
def test_the_wanted_style_is_learned_and_what_is_right_stays(desk):
    """Two cores, quiet: 50 s."""

    def follow(run: str, after: int):
        while desk.runs.active == run:
            desk.runs.events(run, after=10**9, wait_s=0.2)
        return desk.runs.read(run)

    record, found, lines = run_preference_demo(desk, "", follow, lambda *told: None)
    assert record.state == "finished" and found["held_out"] == 120 and lines
    assert found["style_before"] <= 0.4 and found["style_after"] > 0.95
    assert found["accuracy_after"] >= found["accuracy_before"] - 0.05
    assert is_of_demo(desk, record.run, ROWS)
    again, same, _ = run_preference_demo(desk, record.run, follow, lambda *told: None)
    assert again.run == record.run and same == found
