"""The parts of a run on the screen: phases, clock, log and failure, drawn from what is known of it."""

from __future__ import annotations

import pytest

from studio.core.events import (
    Diagnosis,
    Fix,
    PhaseStarted,
    RunStopped,
)
from studio.core.text import literal
from studio.ui import run_view
from studio.ui.live import LiveView, fold
from studio.ui.run_view import log_card, status_card
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
    assert "are loaded first" in status_card(LiveView(), "running", context.say, None, 1.0)


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


def test_a_diagnosis_without_words_is_shown_all_the_same(context):
    hollow = Diagnosis(id="x", what=None, why=None, fixes=(Fix(title=None), Fix(title=literal("try this"))))
    card = run_view.failure_card(hollow, context.say)
    assert "try this" in card and context.say("failure.unknown") in card and "None" not in card
