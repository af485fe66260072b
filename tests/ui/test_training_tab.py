"""The Training tab: what its buttons do, that a page is not believed, and what a start says of its problems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from studio.core.errors import Problem, StudioError
from studio.core.events import (
    Diagnosis,
    Fix,
    RunFailed,
    RunPaused,
    RunStalled,
    StallEnded,
)
from studio.core.i18n import literal
from studio.ui.tabs.dataset.tab import DatasetTab
from studio.ui.tabs.hyperparameters.tab import HyperparametersTab
from studio.ui.tabs.model.tab import ModelTab
from studio.ui.tabs.training import cards as run_view
from studio.ui.tabs.training.cards import place_of
from tests.each_time import every
from tests.ui.training_page import EVIL, Page, RunDesk, make, step, values

OWNER = SimpleNamespace(request=SimpleNamespace(scope={"studio.role": "owner"}))


@pytest.fixture
def context(workspace, keys):
    from studio.ui.context import Context

    return Context(RunDesk(workspace), workspace, keys, "en")


@pytest.fixture
def whole(context):
    """The tab beside those that hold the form's fields."""
    return make(context, ModelTab, DatasetTab, HyperparametersTab)


@pytest.fixture
def tab(context):
    """The tab alone, as long as nothing is read from the form."""
    return make(context)


def test_a_start_with_problems_lists_them_beside_their_fields_and_starts_nothing(context, whole):
    context.desk.problems = tuple(
        Problem(field=path, message=literal(path), fix=literal(EVIL))
        for path in ("optim.epochs", "data.source")
    )
    html, shown = whole.begin(*values(whole))
    assert context.desk.started == [] and shown == gr.skip()
    assert "Epochs" in html and "<img" not in html and 'data-errors="2"' in html
    assert 'data-go="hyperparameters" data-mark="knob-optim-epochs"' in html
    assert 'data-go="dataset" data-mark="dataset-source"' in html
    assert whole.examine(*values(whole)) == html
    assert whole.add_to_queue(*values(whole))[0] == html and context.desk.did == []


def test_every_setting_has_a_field_to_go_to(whole):
    for path, component in whole.form.components.items():
        if path in ("model.source", "data.source"):
            continue
        assert place_of(path)[1] == component.elem_id, path


def test_a_start_shows_the_new_run(context, whole):
    html, shown = whole.begin(*values(whole))
    assert html == "" and context.desk.started == [context.draft()]
    page = Page(whole, shown["run"])
    parts = page.look()
    assert (page.run, page.active, page.state) == ("run-1", "run-1", "running")
    assert all(f'data-do="{do}"' in parts["controls"] for do in ("pause", "stop", "discard"))
    assert "data-confirm" in parts["controls"] and 'data-run="run-1"' in parts["status"]
    assert whole.examine(*values(whole)) == "", "the settings of a run that is on are frozen"


def test_a_run_can_wait_in_the_queue(context, whole):
    html, shown = whole.add_to_queue(*values(whole))
    assert context.desk.did == [("add", "demo")] and shown["run"] == ""
    assert "&lt;img" in html and "<img" not in html and 'data-go="runs"' in html


def test_buttons_do_what_they_say(context, tab):
    run = context.desk.queue.start(context.draft())
    for do in ("pause", "unpause"):
        assert tab.hear({"do": do}, {"run": run})["note"]
    context.desk.log[run] += [step(1, 1), RunPaused(seq=2, time_s=2, step=1)]
    page = Page(tab, run)
    parts = page.look()
    assert page.state == "paused" and 'data-do="unpause"' in parts["controls"] and "Paused" in parts["status"]
    assert (
        "Paused" in parts["chip"]
        and 'data-head="Paused"' in parts["chip"]
        and 'data-do="stop"' in parts["chip"]
    )
    assert not any("Training" in parts[name] for name in ("chip", "status", "pick", "spoken"))
    tab.hear({"do": "stop"}, {"run": run})
    assert context.desk.active is None
    page.look()
    assert 'data-do="resume"' in page.parts["controls"]
    tab.hear({"do": "resume"}, {"run": run})
    assert context.desk.active == run
    tab.hear({"do": "discard"}, {"run": run})
    assert context.desk.did == [("pause", run), ("unpause", run), ("discard", run)]
    page.look()
    assert (page.run, page.parts["controls"]) == ("", "") and "No run yet" in page.parts["status"]


@pytest.mark.parametrize(
    "said", every(3, [None, "stop", [], {"do": "fix", "value": "9"}, {"do": "explode"}, {"do": "answer"}])
)
def test_what_a_page_says_is_not_believed(context, tab, said):
    context.desk.log["one"] = [step(1, 1)]
    for watched in (None, [], {"run": "../../etc"}, {"run": 7}):
        assert set(tab.hear(said, watched)) == {"run", "note", "number"}
    assert context.desk.started == []
    for shown in (
        None,
        [],
        {"marks": 3, "chart": "x", "run": ["a"]},
        {"chart": {"cursor": 3}, "sample": EVIL},
        {"chip": {"run": ["a"], "state": "running"}, "active": 7},
        {"chip": "one"},
    ):
        assert tab.page.look(shown)["run"] == "one"


def test_a_stranger_is_told_nothing(context, tab):
    for name in ("look", "log"):
        work = getattr(tab.watched, name)
        for stranger in (
            SimpleNamespace(request=None),
            SimpleNamespace(request=SimpleNamespace(scope={"studio.role": "viewer"})),
        ):
            with pytest.raises(gr.Error):
                work(stranger, {})
    assert tab.watched.look(OWNER, {})["run"] == ""


def test_a_stop_stops_the_run_that_it_was_meant_for(context, tab):
    first, second = (context.desk.queue.start(context.draft()) for _ in range(2))
    late = tab.hear({"do": "stop"}, {"run": first})
    assert context.desk.active == second and context.say("ui.run.not_running") in late["note"]
    assert not tab.stop(first) and not tab.stop("") and context.desk.active == second
    assert tab.stop(second) and context.desk.active is None


def test_a_run_of_the_command_line_has_no_stop_here(context, tab, monkeypatch):
    context.desk.log["theirs"] = [step(1, 1)]
    record = replace(context.desk.runs.read("theirs"), state="running")
    monkeypatch.setattr(context.desk, "read", lambda run: record)
    page = Page(tab)
    page.look()
    assert 'data-state="running"' in page.parts["chip"] and "data-do" not in page.parts["chip"]
    assert page.parts["controls"] == ""


def test_a_run_that_no_longer_lives_can_be_resumed(context, tab):
    context.desk.log["cut"] = [step(1, 1)]
    page = Page(tab)
    page.look()
    assert page.state == "interrupted" and 'id="run-resume"' in page.parts["controls"]
    tab.hear({"do": "resume"}, {"run": "cut"})
    page.look()
    assert 'id="run-stop"' in page.parts["controls"]
    with pytest.raises(StudioError):
        tab.hear({"do": "resume"}, {"run": ""})


def test_a_fix_is_applied_and_started(context, tab):
    fixes = (Fix(title=literal("look")), Fix(title=literal(EVIL), change={"optim.micro_batch": 1}))
    diagnosis = Diagnosis(id="x", what=literal(EVIL), why=literal("y"), fixes=fixes)
    context.desk.log["bad"] = [RunFailed(seq=1, time_s=1, step=1, diagnosis=diagnosis)]
    page = Page(tab)
    card = page.look()["failure"]
    assert "<img" not in card and 'data-do="fix" data-value="1"' in card and card.count("<button") == 1
    assert tab.hear({"do": "fix", "value": "0"}, {"run": "bad"})["run"] == "bad"
    shown = tab.hear({"do": "fix", "value": "1"}, {"run": "bad"})
    assert context.desk.started[0].optim.micro_batch == 1 and shown["run"] == context.desk.active


def test_a_run_that_stands_still_asks_and_the_box_goes_when_it_moves(context, tab):
    run = context.desk.queue.start(context.draft())
    stall = RunStalled(
        seq=2, time_s=2, step=3, phase="train", waited_s=61, verdict="blocked",
        message=literal(EVIL), frame="a.py:1 in <b>", action="ask",
    )  # fmt: skip
    context.desk.log[run] = [step(2, 1), stall]
    page = Page(tab)
    card = page.look()["stall"]
    assert "a.py:1 in &lt;b&gt;" in card and "<img" not in card
    assert all(f'data-value="{name}"' in card for name in ("wait", "restart", "stop"))
    assert "note" in tab.hear({"do": "answer", "value": "restart"}, {"run": run})["note"]
    tab.hear({"do": "answer", "value": "format the disk"}, {"run": run})
    assert context.desk.answered == [(run, "restart")]
    context.desk.log[run].append(StallEnded(seq=3, time_s=3, step=3, waited_s=70))
    assert page.look()["stall"] == ""


def test_what_is_added_while_a_run_is_on_is_said_to_wait(tab):
    style = Path(run_view.__file__).with_name("style.css").read_text(encoding="utf-8")
    assert "waits in the queue" in tab.waits.value and tab.waits.elem_id == "run-queue-why"
    assert 'body:not([data-training="yes"]) #run-queue-why { display: none; }' in style
