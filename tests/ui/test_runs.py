"""The Runs tab: what the table says, what each button does, and that no name ever becomes HTML."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.facts import Verdict
from studio.core.i18n import literal, load_catalogue, text
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.services.queue import QueueItem
from studio.services.run_library import PLAN_PARTS
from studio.ui.context import Context
from studio.ui.form import Form
from studio.ui.tabs.runs.queue import queue_card
from studio.ui.tabs.runs.tab import FRESH, RunsTab
from studio.ui.tabs.runs.table import (
    CHUNK,
    Panel,
    comparison_card,
    matches,
    runs_table,
    source_name,
    sparkline,
)
from studio.ui.tabs.training.cards import settings_card
from tests.doubles.run_library import EVIL, LibraryDesk, make_entry, make_training
from tests.ui.sheet import Sheet

RECIPE = Recipe(name="one", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))
STOPPED = {"state": "stopped", "artifact": "", "steps": 12}


@pytest.fixture
def desk(workspace) -> LibraryDesk:
    desk = LibraryDesk(workspace)
    desk.library.kept = (
        make_entry("new-2", resumable=Verdict(ok=True), **STOPPED),
        make_entry("old-1", name=EVIL, base=EVIL),
    )
    return desk


@pytest.fixture
def tab(desk, workspace, keys) -> RunsTab:
    context = Context(desk, workspace, keys, "en")
    with Sheet() as blocks:
        form = Form(context.words, context.draft())
        form.fields(["name", "optim.max_steps"])
        with gr.Tab("Runs") as part:
            tab = RunsTab(context)
        training = make_training()
        tab.bind(part, form, training)
    tab.blocks = blocks
    return tab


def ask(tab: RunsTab, do: str, value: str = "", page: dict = FRESH, **form: object) -> dict:
    """Return what a button changes, by the output's elem_id or name; `page` always."""
    answer = tab.hear({"do": do, "value": value, "form": form}, page)
    names = ["page", "queue", "body", "note", "overlay", "differences", "go", "watched"]
    names += list(tab.form.components)
    skipped = gr.skip()
    return {name: part for name, part in zip(names, answer, strict=True) if name == "page" or part != skipped}


def table(desk, say, **options) -> str:
    entries = desk.library.entries()
    options = {"total": len(entries), "panel": Panel(), "active": ""} | options
    return runs_table(entries, say, **options)


# What is shown --------------------------------------------------------------------------------------------------------


def test_names_of_any_kind_stay_text(tab, desk):
    shown = ask(tab, "actions", "old-1")["body"] + ask(tab, "rename", "old-1")["body"]
    shown += ask(tab, "again", "old-1")["body"] + "".join(ask(tab, "compare", "new-2 old-1")["differences"])
    desk.queue.kept = [QueueItem(id=EVIL, name=EVIL, recipe=RECIPE, state="failed", problem=literal(EVIL))]
    shown += ask(tab, "search", EVIL)["queue"] + ask(tab, "search", f"{EVIL} not there")["body"]
    assert "<img" not in shown and shown.count("&lt;img") > 8
    assert "<b>" not in ask(tab, "again", "old-1")["body"].replace('<b class="letter">', "")


def test_a_row_says_what_the_run_is(tab):
    shown = ask(tab, "")["body"]
    for words in (
        "Stopped",
        "Finished",
        "12 / 30",
        "1.7500",
        "mine.csv",
        "Demo",
        "1:15",
        "3.0 MiB",
        "Runs: 2",
    ):
        assert words in shown, words
    assert 'aria-label="Loss curve, last value 1.5"' in shown


@pytest.mark.parametrize(
    ("losses", "words"),
    [((), "No loss yet"), ((1.0,), "No loss yet"), ((2.0, math.nan, 1.0, math.inf), "value 1")],
)
def test_a_curve_has_words_and_no_broken_point(context, losses, words):
    drawn = str(sparkline(losses, context.say))
    assert words in drawn and "nan" not in drawn and "inf" not in drawn.replace("info", "")


def test_a_flat_curve_is_a_line(context):
    assert (
        "L2" not in sparkline((1.0, 1.0, 1.0), context.say)["line"]
        and sparkline((1.0, 1.0, 1.0), context.say)["line"]
    )


@pytest.mark.parametrize(
    ("source", "name"),
    [("demo", "Demo"), ("me/data", "me/data"), ("/data/me/data.csv", "data.csv"), (r"C:\me\data.csv", "data.csv"),
     ("./data.csv", "data.csv"), ("", ""), ("/", "/")],
)  # fmt: skip
def test_sources_are_named_in_short(context, source, name):
    assert source_name(source, context.say) == name


def test_search_looks_at_name_state_model_and_data(desk, context):
    new, old = desk.library.entries()
    for words in ("NEW", "stopped", "demo mine", ""):
        assert matches(new, words, context.say), words
    assert not matches(new, "finished", context.say) and not matches(old, "new", context.say)


def test_five_hundred_runs_come_in_chunks_and_quickly(tab, desk):
    desk.library.kept = tuple(make_entry(f"run-{i}", spark=tuple(range(60))) for i in range(500))
    began = time.perf_counter()
    answer = ask(tab, "")
    took_s = time.perf_counter() - began
    assert answer["body"].count("<tr data-run") == CHUNK and "Show 100 more" in answer["body"]
    assert took_s < 0.5
    answer = ask(tab, "more", page=answer["page"])
    assert answer["body"].count("<tr data-run") == 2 * CHUNK
    answer = ask(tab, "search", "run-49", page=answer["page"])
    assert answer["body"].count("<tr data-run") == 11 and "11 of 500 runs" in answer["body"]


def test_what_a_page_has_is_not_sent_again(tab, desk):
    page = ask(tab, "")["page"]
    again = ask(tab, "", page=page)
    assert "body" not in again and "queue" not in again
    desk.library.kept = desk.library.kept[:1]
    assert "body" in ask(tab, "", page=page)


def test_an_empty_shelf_says_so(tab, desk):
    desk.library.kept = ()
    assert "No runs yet" in ask(tab, "")["body"]


# Buttons of one run ---------------------------------------------------------------------------------------------------


def test_the_panel_offers_what_can_be_done_and_says_why_not(tab, desk):
    def button(shown: str, do: str) -> str:
        return shown.split(f'data-do="{do}"')[-1].split(">")[0]

    shown = ask(tab, "actions", "new-2")["body"]
    assert "disabled" not in button(shown, "resume") and "disabled" in button(shown, "chat")
    assert "need a result or a checkpoint" in shown
    desk.library.kept = tuple(replace(entry, checkpoint=6) for entry in desk.library.kept)
    shown = ask(tab, "actions", "new-2")["body"]
    assert "disabled" not in button(shown, "chat") and "need a result" not in shown, "its checkpoint answers"
    shown = ask(tab, "actions", "old-1")["body"]
    assert "disabled" in button(shown, "resume") and "disabled" not in button(shown, "export")
    desk.library.kept = (
        make_entry("gone", resumable=Verdict(ok=False, reason=literal("the disk lost it")), **STOPPED),
    )
    assert "Cannot be resumed: the disk lost it" in ask(tab, "actions", "gone")["body"]
    desk.active = "gone"
    shown = ask(tab, "actions", "gone")["body"]
    assert "disabled" in button(shown, "delete") and "disabled" in button(shown, "rename")


def test_another_run_that_is_on_keeps_one_from_being_resumed(tab, desk):
    desk.active = "other"
    assert "Another run is in progress" in ask(tab, "actions", "new-2")["body"]


def test_a_panel_opens_and_closes(tab):
    page = ask(tab, "actions", "old-1")["page"]
    assert page["panel"] == Panel(run="old-1")
    assert ask(tab, "actions", "old-1", page)["page"]["panel"] == Panel()
    page = ask(tab, "rename", "old-1", page)["page"]
    assert 'name="name"' in ask(tab, "rename", "old-1")["body"]
    assert ask(tab, "cancel", "old-1", page)["page"]["panel"] == Panel(run="old-1")


def test_open_chat_and_export_show_the_run_and_go_there(tab):
    for do, go in (("open", "training"), ("chat", "chat old-1"), ("export", "export old-1")):
        answer = ask(tab, do, "old-1")
        assert answer["go"] == go and answer["watched"] == {"run": "old-1"}


def test_resume_goes_on_and_opens_training(tab, desk):
    assert ask(tab, "resume", "new-2")["go"] == "training" and desk.resumed == ["new-2"]


def test_run_again_shows_what_differs_then_starts_or_queues(tab, desk):
    answer = ask(tab, "again", "old-1")
    assert "torch 2.9 then" in answer["body"] and 'data-do="again-start"' in answer["body"]
    started = ask(tab, "again-start", "old-1", answer["page"])
    assert started["go"] == "training" and desk.started[0].name == "old-1 again"
    asked = ask(tab, "again", "old-1")
    assert 'data-do="again-start"' not in asked["body"], "a run is on: it can only wait"
    queued = ask(tab, "again-queue", "old-1")
    assert desk.queue.kept[0].name == "old-1 again" and "old-1 again" in queued["note"] and queued["go"] == ""


def test_duplicate_puts_the_settings_into_form_and_draft(tab):
    answer = ask(tab, "duplicate", "old-1")
    assert answer["go"] == "hyperparameters" and str(answer["optim.max_steps"]) == "77"
    assert tab.context.draft().name == "old-1 copy"


def test_rename_and_delete(tab, desk):
    answer = ask(tab, "save", "old-1", name="  better <i>  " + "x" * 100)
    done = desk.library.done[0]
    assert done[:2] == ("rename", "old-1") and done[2].startswith("better <i>") and len(done[2]) <= 80
    answer = ask(tab, "delete", "old-1")
    assert "old-1" not in answer["body"] and "3.0 MiB" in answer["note"]
    with pytest.raises(StudioError):
        ask(tab, "delete", "../../etc")


def test_import_takes_a_path_and_refuses_none(tab, desk):
    assert "trip-1" in ask(tab, "import", folder=' "/media/trip" ')["note"]
    assert desk.library.done == [("import", Path("/media/trip"))]
    with pytest.raises(StudioError):
        ask(tab, "import", folder="  ")


@pytest.mark.parametrize("said", [None, "x", {"do": "nonsense"}, {"do": ["x"], "value": {}, "form": 3}])
def test_what_no_button_says_changes_nothing(tab, desk, said):
    tab.hear(said, FRESH)
    assert not desk.started and not desk.library.done and not desk.queue.done


# Several runs ---------------------------------------------------------------------------------------------------------


def test_two_runs_are_laid_over_each_other_and_their_differences_told(tab):
    answer = ask(tab, "compare", "old-1 new-2 no-such-run")
    first = answer["overlay"]["runs"][0]
    assert [run["run"] for run in answer["overlay"]["runs"]] == ["new-2", "old-1"]
    assert first["loss"] == [[1, 2.0], [2, 1.0]] and first["eval"] == [[2, 1.5]]
    for words in ("Learning rate", "0.0002", ">torch<", "1.7500", "Settings that differ"):
        assert words in answer["differences"], words
    answer = ask(tab, "close")
    assert answer["overlay"] == {"runs": []} and answer["differences"] == ""


@pytest.mark.parametrize("value", ["", "old-1", "old-1 old-1", " ".join(f"run-{i}" for i in range(6))])
def test_one_run_or_six_are_not_compared(tab, desk, value):
    desk.library.kept += tuple(make_entry(f"run-{i}") for i in range(6))
    with pytest.raises(StudioError):
        ask(tab, "compare", value)


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_what_differs_is_told_by_its_names(desk, language):
    words = load_catalogue(language)
    settings = (
        ("optim.schedule", ("cosine", "linear")),
        ("data.train_on", ("last_answer", None)),
        ("run.trial", (True, False)),
        ("data.mix", ({"a.jsonl": "2"}, {})),
    )
    plan = {
        "device": "cpu",
        "dtype": "bf16",
        "attention": "sdpa",
        "quantization": "nf4",
        "optimizer": "adamw",
    }
    assert set(plan) == set(PLAN_PARTS)
    environment = (
        *((f"plan.{name}", (value, "")) for name, value in plan.items()),
        ("plan.kernels.rms_norm", ("reference", "triton")),
        ("base_hash", ("0123456789abcdef", "")),
        ("package.torch", ("2.9", "")),
    )
    comparison = replace(desk.library.compare(()), settings=settings, environment=environment)
    shown = comparison_card([make_entry("a"), make_entry("b")], comparison, words)
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", shown)
    choices = ("optim.schedule", "cosine"), ("data.train_on", "last_answer"), ("run.device", "cpu")
    names = [f"knob.{path}.choice.{choice}" for path, choice in (*choices, ("model.quantization", "nf4"))]
    for id in (*names, "ui.form.on", "ui.plan.dtype", "ui.plan.device"):
        assert words.say(text(id)) in cells, id
    assert {"PyTorch", "Triton", "a.jsonl = 2", "torch", "0123456789ab", "–"} <= set(cells)
    assert not [cell for cell in cells if "plan." in cell or "last_answer" in cell or "cosine" in cell]


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_frozen_settings_are_told_by_their_names(language):
    words = load_catalogue(language)
    changes = {"optim.schedule": "linear", "model.quantization": "nf4", "optim.learning_rate": 2e-5}
    shown = settings_card(change_recipe(RECIPE, changes), words).partition("<details>")[0]
    for id in ("knob.optim.schedule.choice.linear", "knob.model.quantization.choice.nf4"):
        assert f"<dd>{words.say(text(id))}</dd>" in shown
    assert "<dd>0.00002</dd>" in shown and "<dd>linear</dd>" not in shown


def test_runs_that_differ_in_nothing_say_so(tab, desk, monkeypatch):
    same = replace(desk.library.compare(()), settings=(), environment=())
    monkeypatch.setattr(desk.library, "compare", lambda runs: same)
    assert ask(tab, "compare", "old-1 new-2")["differences"].count("No difference.") == 2


def test_handlers_of_one_pages_state_do_not_overlap(tab):
    """A table that is being drawn must not close the row that is opened meanwhile."""
    handlers = [fn for fn in tab.blocks.fns.values() if tab.page in fn.outputs]
    assert len(handlers) == 3
    assert {(fn.concurrency_id, fn.concurrency_limit) for fn in handlers} == {("runs-page", 1)}


# The queue ------------------------------------------------------------------------------------------------------------


def item(name: str, state: str = "waiting", **changes) -> QueueItem:
    return QueueItem(id=f"id-{name}", name=name, recipe=RECIPE, state=state, **changes)


def test_the_queue_says_what_runs_waits_and_failed(context):
    failed = item("bad", "failed", problem=literal("no disk"))
    items = (item("now", "running", run="now-1"), item("a"), item("b"), failed, item("fine", "done", run="x"))
    shown = queue_card(items, context.say, reason=None, keep_going=True)
    rows = shown.split("<li ")[1:]
    assert [row.split('data-state="')[1].split('"')[0] for row in rows] == [
        "running",
        "waiting",
        "waiting",
        "failed",
    ]
    assert 'data-do="stop" data-value="now-1"' in rows[0] and "no disk" in rows[3]
    assert "disabled" in rows[1].split('data-do="up"')[1].split(">")[0]
    assert "disabled" not in rows[1].split('data-do="down"')[1].split(">")[0]
    assert "checked" in shown and 'data-do="hold"' in shown
    held = queue_card(items, context.say, reason=literal("you stopped “x”"), keep_going=False)
    assert 'data-do="go"' in held and "you stopped" in held and " checked" not in held


def test_the_queue_does_what_its_buttons_say(tab, desk):
    desk.queue.kept = [item("a"), item("b")]
    for do, value in (("up", "id-b"), ("down", "id-a"), ("drop", "id-a")):
        ask(tab, do, value)
    assert desk.queue.done == [("move", "id-b", -1), ("move", "id-a", 1), ("drop", "id-a")]
    ask(tab, "hold")
    assert desk.queue.held
    ask(tab, "go")
    ask(tab, "keep", "true")
    ask(tab, "stop", "now-1")
    assert not desk.queue.held and desk.queue.keep_going and desk.stopped == ["now-1"]
    ask(tab, "keep", "false")
    assert desk.queue.keep_going is False


def test_a_paused_run_is_paused_in_queue_and_table(tab, desk):
    desk.library.kept = (make_entry("now-1", state="paused", artifact=""),)
    desk.queue.kept = [item("now", "running", run="now-1")]
    desk.active = "now-1"
    answer = ask(tab, "actions", "now-1")
    for shown in (answer["queue"], answer["body"]):
        assert 'class="chip paused"' in shown and "Running" not in shown and "Training" not in shown
    assert 'data-do="stop"' in answer["queue"]
    assert ask(tab, "search", "paused")["body"].count("data-run=") == 1


def test_a_new_name_goes_to_the_queue_too(tab, desk):
    ask(tab, "save", "old-1", name="better")
    assert desk.queue.done == [("rename", "old-1", "better")]
