"""The parts of a run on the screen: phases, clock, log and failure, drawn from what is known of it."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from studio.core.errors import Problem, StudioError
from studio.core.events import (
    Diagnosis,
    Fix,
    PhaseStarted,
    RunFinished,
    RunPlanned,
    RunStopped,
)
from studio.core.facts import Slower
from studio.core.i18n import literal, text
from studio.core.run_record import RunRecord
from studio.services.recipes import DEMO_RECIPE, read_recipe
from studio.ui.run_state import LiveView, fold
from studio.ui.tabs.training import cards as run_view
from studio.ui.tabs.training.cards import check_card, log_card, slower_card
from studio.ui.tabs.training.status import status_card
from studio.ui.tabs.training.tab import read_way
from studio.ui.templates import render
from tests.ui.conftest import make_plan
from tests.ui.training_page import RunDesk, step


@pytest.fixture
def context(workspace, keys):
    from studio.ui.context import Context

    return Context(RunDesk(workspace), workspace, keys, "en")


def test_a_phase_that_takes_time_says_why(context):
    view = fold(LiveView(), [PhaseStarted(seq=1, time_s=100.0, phase="load")])
    quick = status_card(view, "running", context.say, None, 102.0)
    slow = status_card(view, "running", context.say, None, 130.0)
    assert "reason" not in quick and "from the disk" in slow and "0:30" in slow
    moving = fold(view, [PhaseStarted(seq=2, time_s=131.0, phase="train"), step(1, 3, 140.0)])
    assert "reason" not in status_card(moving, "running", context.say, None, 200.0)
    assert "are loading" in status_card(LiveView(), "running", context.say, None, 1.0)


@pytest.mark.parametrize(("device", "kernels"), [("cpu", False), ("cuda:0", True)])
def test_a_processor_compiles_no_kernels(context, device, kernels):
    plan = make_plan()
    plan = replace(plan, device=replace(plan.device, value=device))
    view = fold(
        LiveView(),
        [RunPlanned(seq=1, time_s=1.0, plan=plan), PhaseStarted(seq=2, time_s=100.0, phase="train")],
    )
    card = status_card(view, "running", context.say, None, 130.0)
    assert "first step" in card and ("kernels" in card) == kernels


def test_a_template_in_the_data_is_not_a_template_of_the_page():
    view = fold(
        LiveView(), [PhaseStarted(seq=1, time_s=1, phase="train", detail=literal("${alert(1)} {{value}} `"))]
    )
    assert "${alert(1)} {{value}} `" in log_card(view, lambda message, **_: str(message.values["words"]))
    assert run_view.failure_card(None, str) == ""


def test_the_clock_of_a_run_that_has_ended_stands_still_at_once(context):
    """It keeps the engine for a moment after its last event: the time on show must not go back then."""
    view = fold(LiveView(), [step(1, 1, 100.0), RunStopped(seq=2, time_s=140.4, step=1, saved=True)])
    before = status_card(view, "running", context.say, None, 141.2)
    after = status_card(view, "stopped", context.say, None, 142.0)
    assert "0:40" in before and "0:40" in after


def test_the_clock_begins_with_the_run_and_ends_with_what_the_list_of_runs_says(context):
    """Loading the libraries took 7 of a demo's 23 s: the page said 0:16 then, the list 0:23."""
    view = fold(LiveView(), [step(1, 1, 107.0)])
    record = RunRecord(run="r", name="r", state="running", created_s=100.0)
    assert "0:20" in status_card(view, "running", context.say, record, 120.0)
    assert "0:05" in status_card(LiveView(), "running", context.say, record, 105.0)
    view = fold(view, [RunFinished(seq=2, time_s=116.0, step=1, loss=1.0, artifact="adapter")])
    ended = replace(
        record,
        state="finished",
        timings_s={"start_command": 45.5, "start_libraries": 7.5, "train": 9.0, "save": 6.5},
    )
    assert ended.worked_s == 23.0
    assert "0:23" in status_card(view, "finished", context.say, ended, 500.0)
    assert "0:23" in run_view.done_card(ended, view, context.say)


def test_a_restart_says_what_is_done_again_and_its_clock_leaves_the_dead_time_out(context):
    lost = [PhaseStarted(seq=1, time_s=100.0, phase="train"), step(1, 2, 110.0), step(2, 3, 120.0)]
    anew = [PhaseStarted(seq=4, time_s=320.0, phase="load"), step(1, 5, 330.0)]
    view = fold(LiveView(), [*lost, *anew])
    card = status_card(view, "running", context.say, None, 331.0)
    assert "2 steps are done again" in card and "0:31" in card
    view = fold(view, [step(2, 6, 340.0)])
    assert "done again" not in status_card(view, "running", context.say, None, 341.0)


def test_a_diagnosis_without_words_is_shown_all_the_same(context):
    hollow = Diagnosis(id="x", what=None, why=None, fixes=(Fix(title=None), Fix(title=literal("try this"))))
    card = run_view.failure_card(hollow, context.say)
    assert "try this" in card and context.say("failure.unknown") in card and "None" not in card


EVIL = "<img src=x>"
SLOW = Slower(id="decoder", reason=text("slower.decoder", reason=literal(EVIL)), factor=11.6)


def test_what_makes_a_run_slower_stands_above_its_curves(context):
    say = context.say
    assert slower_card((), say) == ""
    shown = slower_card((SLOW,), say)
    assert "About 12 times slower" in shown and EVIL not in shown and "run-slower" in shown
    assert 'id="run-slower"' in render("tabs/training/top.html", say)


def test_a_way_out_is_a_button_with_its_change(context):
    say = context.say
    way = Fix(title=literal(f"Fewer {EVIL}"), change={"data.max_rows": 800, "optim.epochs": 1.0})
    one = Problem(
        field="optim.epochs", message=literal("Long."), fix=literal("Less."), ways=(way,), severity="warning"
    )
    shown = check_card((one,), read_recipe(DEMO_RECIPE), say)
    value = re.search(r'data-do="way" data-value="([^"]+)"', shown).group(1)
    assert read_way(unescape(value)) == way.change and EVIL not in shown
    for wrong in ("", "[]", '{"run.device": "cpu"}', '{"data.max_rows": "9"}', '{"data.max_rows": true}'):
        with pytest.raises(StudioError):
            read_way(wrong)
