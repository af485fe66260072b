"""A page of a run: what it is told each second, once, whichever way it came, and that no data ever becomes HTML."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studio.core.events import (
    CheckpointSaved,
    KernelFellBack,
    PhaseStarted,
    RunFinished,
    RunPlanned,
    RunStopped,
    SampleWritten,
)
from studio.core.i18n import literal
from studio.services.sharing import Opening
from studio.ui.cards import run_label
from studio.ui.metric_columns import Points, payload
from studio.ui.tabs.training.cards import samples_card
from tests.ui.conftest import make_plan
from tests.ui.training_page import EVIL, Page, RunDesk, make, step


@pytest.fixture
def context(workspace, keys):
    from studio.ui.context import Context

    return Context(RunDesk(workspace), workspace, keys, "en")


@pytest.fixture
def tab(context):
    """The tab alone, as long as nothing is read from the form."""
    return make(context)


def test_two_pages_and_a_reload_see_each_point_once(context, tab):
    run = context.desk.queue.start(context.draft())
    first, second = Page(tab), Page(tab)
    events = [PhaseStarted(seq=1, time_s=1, phase="train"), *(step(i, i + 1) for i in range(1, 5))]
    for i, event in enumerate(events):
        context.desk.log[run].append(event)
        first.look()
        if i == 2:
            first = Page(tab)  # reload
        if i % 2:
            second.look()
    for page in (first, second):
        page.look()
        assert page.steps == 4
    asked = [after for _, after in context.desk.asked]
    assert asked == sorted(asked), "events that were folded are not read again"


def test_a_page_that_has_everything_gets_nothing(context, tab):
    run = context.desk.queue.start(context.draft())
    context.desk.log[run] += [step(1, 1), RunFinished(seq=2, time_s=2, step=1, loss=1, artifact="adapter")]
    context.desk.active = None
    page = Page(tab)
    parts = page.look()
    assert parts["controls"] == "" and 'data-go="export"' in parts["verdicts"]
    assert page.look() == {} and len(page.payloads) == 1


def test_a_finished_run_makes_room_once_the_form_is_about_another(context, tab):
    run = context.desk.queue.start(context.draft())
    context.desk.log[run] += [step(1, 1), RunFinished(seq=2, time_s=2, step=1, loss=1, artifact="adapter")]
    context.desk.active = None
    page = Page(tab)
    assert "say primary" in page.look()["verdicts"]
    context.edit({"name": "another name"})
    assert page.look() == {}
    context.edit({"optim.epochs": 7.0})
    folded = page.look()["verdicts"]
    assert "primary" not in folded and 'data-go="chat"' in folded and "another one" in folded


def test_another_page_follows_a_run_that_starts(context, tab):
    context.desk.log["old"] = [RunFinished(seq=1, time_s=1, step=1, loss=1, artifact="a")]
    page = Page(tab)
    page.look()
    assert page.run == "old"
    context.desk.queue.start(context.draft())
    page.look()
    assert page.run == context.desk.active
    page.run = "old"  # the person looks at another one meanwhile
    page.look()
    assert page.run == "old" and page.parts["controls"] == ""


def test_the_chip_and_the_end_are_those_of_the_run_that_is_on(context, tab):
    """Whichever run one looks at; the next of the queue may begin between two looks."""
    context.desk.log["old"] = [RunStopped(seq=1, time_s=1, step=1, saved=True)]
    first = context.desk.queue.start(context.draft())
    context.desk.log[first] = [step(1, 1)]
    page = Page(tab)
    page.look()
    page.run = "old"
    page.look()
    assert page.run == "old" and 'data-state="stopped"' in page.parts["status"]
    chip = page.parts["chip"]
    assert f'data-run="{first}"' in chip and 'data-state="running"' in chip and 'data-head="25%"' in chip
    assert f'data-do="stop" data-value="{first}"' in chip and f'data-run-choice="{first}"' in chip
    assert page.told == []

    context.desk.log[first].append(RunFinished(seq=2, time_s=2, step=4, loss=1, artifact="a"))
    second = context.desk.queue.start(context.draft())
    page.look()
    assert page.told == [{"run": first, "name": first, "words": "Finished"}]
    assert f'data-value="{second}"' in page.parts["chip"]

    context.desk.log[second].append(RunStopped(seq=1, time_s=3, step=0, saved=False))
    context.desk.active = None
    page.run = "old"
    page.look()
    page.look()
    assert [one["run"] for one in page.told] == [first, second], "each end once"
    assert f'data-run="{second}"' in page.parts["chip"] and "data-do" not in page.parts["chip"]


def test_a_reload_keeps_the_run_of_its_address_while_another_one_is_on(context, tab):
    context.desk.log["old"] = [RunStopped(seq=1, time_s=1, step=1, saved=True)]
    active = context.desk.queue.start(context.draft())
    page = Page(tab, "old")
    page.look()
    page.look()
    assert (page.run, page.active) == ("old", active)
    for fresh in (Page(tab), Page(tab, "gone")):
        fresh.look()
        assert fresh.run == active
    elsewhere = Page(tab, "old")
    elsewhere.active = ""  # the address was another tab's
    elsewhere.look()
    assert elsewhere.run == active


def test_only_what_is_saved_is_said_to_be_saved(context, tab):
    saved = CheckpointSaved(seq=2, time_s=2, step=1, size_bytes=1)
    for name, events in (("kept", [step(1, 1), saved]), ("lost", [step(1, 1)])):
        context.desk.log[name] = [*events, RunStopped(seq=3, time_s=3, step=1, saved=name == "kept")]
        page = Page(tab, name)
        page.chip = {"run": name, "state": "running"}
        page.look()
        full = "Stopped and saved" if name == "kept" else "Stopped, nothing to save yet"
        assert full in page.parts["status"] and page.parts["spoken"] == full and page.told[0]["words"] == full
        assert ">Stopped<" in page.parts["chip"]
        assert "· Stopped" in run_label(context.desk.runs.read(name), context.say)
        assert "saved" not in page.parts["pick"]


def test_a_run_is_called_by_its_new_name_at_once(context, tab, monkeypatch):
    context.desk.log["one"] = [step(1, 1), RunStopped(seq=2, time_s=2, step=1, saved=True)]
    page = Page(tab)
    page.look()
    record = replace(context.desk.runs.read("one"), name="renamed")
    monkeypatch.setattr(context.desk, "read", lambda run: record)
    parts = page.look()
    assert "<h2>renamed</h2>" in parts["status"] and "pick" in parts


def test_a_page_comes_back_to_the_run_of_its_address(context, tab):
    for name in ("one", "two", "three"):
        context.desk.log[name] = [RunStopped(seq=1, time_s=1, step=1, saved=True)]
    page = Page(tab, "one")
    page.look()
    assert page.run == "one" and page.parts["pick"].count("<option") == 3
    gone = Page(tab, "gone")
    gone.look()
    assert gone.run == "three"


def test_an_op_that_fell_back_is_named_at_the_run(context, tab):
    run = context.desk.queue.start(context.draft())
    fell = KernelFellBack(seq=2, time_s=2, step=7, op="glu", reason=literal("out of resource"))
    context.desk.log[run] = [step(6, 1), fell, step(7, 3)]
    status = Page(tab).look()["status"]
    assert "badge" in status and "glu" in status and "7" in status


def test_sample_answers_are_chosen_by_evaluation_and_escaped(context, tab):
    def answer(seq: int, at: int, words: str) -> SampleWritten:
        return SampleWritten(
            seq=seq, time_s=seq, step=at, prompt=EVIL, answer=words, expected="right", base=EVIL
        )

    context.desk.log["one"] = [answer(1, 0, EVIL), answer(2, 5, "wrong"), answer(3, 9, "right")]
    page = Page(tab)
    newest = page.look()["samples"]
    assert 'data-step="9"' in newest and "<img" not in newest and "as expected" in newest
    page.sample = 5
    chosen = page.look()["samples"]
    assert "wrong" in chosen and "as expected" not in chosen
    page.sample = 0
    assert "before training" in page.look()["samples"]
    assert "<img" not in samples_card((), None, context.say)


def test_a_wrong_answer_does_not_look_like_a_right_one_and_none_is_shown_twice(context):
    asked = {"step": 4, "prompt": "What is 14 plus 14?", "expected": "28"}
    wrong = SampleWritten(seq=1, time_s=0.0, answer="It is 32.", **asked)
    right = SampleWritten(seq=2, time_s=0.0, answer="28", **asked | {"prompt": "And 7 times 4?"})
    shown = samples_card((wrong, wrong, right), None, context.say, held_out=False)
    assert shown.count("It is 32.") == 1 and 'said-now other"' in shown and 'said-now hit"' in shown
    assert shown.count("✗") == 1 and shown.count("✓") == 1 and context.say("ui.samples.trained") in shown
    assert context.say("ui.samples.trained") not in samples_card((right,), None, context.say)


def test_the_reader_hears_of_phases_and_the_end_only(context, tab):
    run = context.desk.queue.start(context.draft())
    context.desk.log[run] = [PhaseStarted(seq=1, time_s=1, phase="train"), step(1, 2)]
    page = Page(tab)
    assert page.look()["spoken"] == "Training: learning"
    context.desk.log[run].append(step(2, 3))
    assert "spoken" not in page.look()


def test_the_settings_are_those_of_the_run_and_the_log_can_be_taken_away(context, tab):
    context.desk.log["one"] = [step(1, 1), RunStopped(seq=2, time_s=2, step=1, saved=True)]
    page = Page(tab)
    card = page.look()["settings"]
    assert "<dt>Model</dt><dd>demo</dd>" in card and "&#34;version&#34;" in card
    words = tab.page.log_text("one")
    assert words.count("\n") == 2 and "Stopped" in words
    context.desk.log["long"] = [replace(step(i, i), total_steps=500) for i in range(1, 501)]
    page.run = "long"
    assert page.look()["log"].count("<p") <= 60
    words = tab.page.log_text("long")
    assert words.count("\n") == 500 and "step 1 " in words.lower(), "the file holds the whole run"
    assert tab.page.log_text("../secret") == ""


def test_a_page_that_was_open_before_hears_that_the_studio_is_shared(context, tab, monkeypatch):
    page = Page(tab)
    assert page.look()["banner"] == "" and "banner" not in page.look()
    sharing = context.desk.sharing
    opening = Opening(
        role="viewer", way="lan", port=7, opened_s=0.0, expires_s=9e9, salt="", phrase_hash=""
    )  # fmt: skip
    view = replace(sharing.view(), number=5, openings=(opening,))
    monkeypatch.setattr(sharing, "view", lambda: view)
    assert "share-banner" in page.look()["banner"]
    view = replace(view, number=6, openings=())
    assert page.look()["banner"] == "" and page.look() == {}


def test_the_charts_know_from_the_start_whether_there_is_a_card(context, tab):
    """The machine has none: four charts, before the first step too, and six for a run that had one."""
    run = context.desk.queue.start(context.draft())
    page = Page(tab)
    page.look()
    assert page.payloads[-1]["card"] is False
    plan = make_plan()
    on_card = replace(plan, device=replace(plan.device, value="cuda:0"))
    for seq, (device, card) in enumerate([(plan, False), (on_card, True)], 1):
        context.desk.log[f"run-{seq}"] = [RunPlanned(seq=1, time_s=1.0, plan=device, swaps=())]
        other = Page(tab, f"run-{seq}")
        other.active = run
        other.look()
        assert other.payloads[-1]["card"] is card
    later = {"run": "a", "generation": 0, "cursor": {"step": 0, "eval": 0, "gpu": 0}, "card": False}
    assert payload("a", 0, Points(), later, card=False) is None
    assert payload("a", 0, Points(), later, card=True)["card"] is True, "the plan came after the first look"


def test_a_page_is_answered_while_the_machine_is_still_examined(context, tab, monkeypatch):
    """At a first start that takes ten seconds and more: the page must not say that nobody answers."""

    def wait():
        raise AssertionError("waits for the probes")

    monkeypatch.setattr(context.desk.machine, "known", False)
    monkeypatch.setattr(context.desk.machine, "facts", wait)
    context.desk.queue.start(context.draft())
    page = Page(tab)
    page.look()
    assert page.look() is not None and page.payloads[-1]["card"] is False
