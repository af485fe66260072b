"""A run that learns from its own answers has a held-out reward where others have a validation loss: everywhere."""

from __future__ import annotations

import dataclasses
import json

import pytest

from studio.cli.console import describe as say_event
from studio.core.codec import to_json
from studio.core.events import EvalLogged, Metric, StepLogged
from studio.core.i18n import LANGUAGES, load_catalogue, text
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import create_run
from studio.services.model_card import write_card
from studio.services.run_library import LibraryEntry, judge_resume
from studio.services.run_summary import read_curve, summarise
from studio.services.trackers.feed import _to_point
from studio.ui.run_state import LiveView, fold
from studio.ui.tabs.runs.table import comparison_card, describe
from studio.ui.tabs.training.status import status_card

RECIPE = Recipe(objective="grpo", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))
LOOKS = [
    EvalLogged(step=step, loss=-reward, metrics={"reward": reward, "exact": 0.5})
    for step, reward in ((0, 0.25), (2, 0.98), (4, 0.5))
]
STEP = StepLogged(step=1, total_steps=4, epoch=0.5, loss=0.01, lr=1e-5, grad_norm=1.0, tokens_per_s=9.0)
EVENTS = [
    dataclasses.replace(event, seq=seq, time_s=1000.0 + seq)
    for seq, event in enumerate([LOOKS[0], STEP, *LOOKS[1:]], 1)
]
METRICS = (Metric(name="reward", better="higher", first=True),)


@pytest.fixture(params=LANGUAGES)
def words(request):
    return load_catalogue(request.param)


@pytest.fixture
def folder(tmp_path):
    """The folder of a run with EVENTS."""
    folder = create_run(tmp_path / "runs", RECIPE)
    lines = [json.dumps(to_json(event)) + "\n" for event in EVENTS]
    folder.events.write_text("".join(lines), encoding="utf-8")
    return folder


def make_entry(folder):
    summary, record = summarise(folder), folder.read_record()
    return LibraryEntry(
        record=record,
        recipe=RECIPE,
        size_bytes=1,
        spark=summary.spark,
        resumable=judge_resume(record, RECIPE, None),
        took_s=1.0,
        best_eval_loss=summary.best_eval_loss,
        best_eval_reward=summary.best_eval_reward,
    )


def test_a_loss_stays_one_and_a_reward_is_none():
    assert [look.reward for look in LOOKS] == [0.25, 0.98, 0.5]
    assert EvalLogged(step=2, loss=1.5, metrics={"rewards/accuracies": 0.5}).reward is None


def test_the_best_of_a_run_is_its_highest_reward_and_no_curve_of_losses_has_it(folder):
    summary = summarise(folder)
    assert (summary.best_eval_loss, summary.best_eval_reward) == (None, 0.98)
    assert [row[0] for row in read_curve(folder)] == ["step"]
    folder.events.write_text(json.dumps(to_json(EvalLogged(step=2, loss=1.5))) + "\n", encoding="utf-8")
    summary = summarise(folder)
    assert (summary.best_eval_loss, summary.best_eval_reward) == (1.5, None)


def test_lists_of_runs_call_it_a_reward(folder, words):
    def say(id, **values):
        return words.say(id if not isinstance(id, str) else text(id, **values))

    entry = make_entry(folder)
    assert describe(entry, say)["eval_loss"] == say("ui.runs.eval_reward", reward="0.9800")
    empty = type("Comparison", (), {"settings": (), "environment": (), "runs": ()})()
    card = str(comparison_card([entry, entry], empty, words))
    assert say("ui.runs.column.eval_reward") in card and "0.9800" in card and "-0.98" not in card


def test_a_run_on_show_calls_it_a_reward(words):
    def say(id, **values):
        return words.say(id if not isinstance(id, str) else text(id, **values))

    view = fold(LiveView(metrics=METRICS), EVENTS)
    assert (view.eval_loss, view.eval_reward) == (None, 0.5)
    assert view.points.counts["eval"] == 0 and view.points.counts["metric"] == 3
    card = str(status_card(view, "running", say))
    assert say("ui.status.eval_reward") in card and "0.5000" in card
    assert say("ui.status.eval_loss") not in card
    told = [words.say(line.message) for line in view.log]
    assert any("0.98" in line for line in told) and not any("-0.98" in line for line in told)


def test_the_command_line_trackers_and_cards_call_it_a_reward(words):
    assert "0.9800" in words.say(say_event(EVENTS[2])) and "-0.98" not in words.say(say_event(EVENTS[2]))
    assert _to_point(EVENTS[2], set()).values == {"eval_reward": 0.98}
    record = RunRecord(run="r", name="r", state="finished", created_s=1.0)
    card = write_card(record, RECIPE, EVENTS, "adapter")
    assert "Last held-out reward: 0.5000." in card and "validation loss" not in card and "-0." not in card
    assert "- grpo" in card and "| optim.learning_rate | 1e-05 |" in card
