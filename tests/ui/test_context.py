"""What handlers are guarded by, and what is kept of the form: whatever a page sends, whatever a crash left behind."""

from __future__ import annotations

from types import SimpleNamespace

import gradio as gr
import pytest

from studio.cli.console import format_duration
from studio.core.events import PhaseStarted
from studio.core.knob import knobs_of
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.ui.context import KEPT_VIEWS
from studio.ui.form import read_recipe
from studio.ui.quantities import time_words
from studio.ui.shell.html_events import read_said

SPOILT = [
    "",
    "null",
    "[1]",
    "{",
    '"abc"',
    "12",
    "[" * 100_000,
    '{"version": 99}',
    '{"name": "\\ud800"}',
    "\0\0",
]


@pytest.fixture
def guard(context, monkeypatch):
    """Call `work` as the owner's page would."""
    monkeypatch.setattr(context, "role", lambda request: "owner")
    return lambda work, *values: context.guarded(work)(SimpleNamespace(), *values)


@pytest.mark.parametrize(
    "work",
    [
        lambda: {}["<key>"],
        lambda: float(10**400),
        lambda: None.strip(),
        lambda: int("<b>x</b>"),
        lambda: "\ud800".encode(),
    ],
)
def test_what_nobody_foresaw_is_told_in_sentences_and_logged(guard, context, work):
    with pytest.raises(gr.Error) as told:
        guard(work)
    kind = type(told.value.__cause__).__name__
    assert context.say("ui.unforeseen") in told.value.message and kind in told.value.message
    assert "<b>" not in told.value.message and told.value.print_exception


def test_a_stream_that_breaks_is_told_too(guard):
    def stream():
        yield 1
        raise KeyError("x")

    steps = guard(stream)
    assert next(steps) == 1
    with pytest.raises(gr.Error, match="KeyError"):
        next(steps)


def test_a_message_of_our_own_comes_through(guard):
    def work():
        raise gr.Error("as it is")

    with pytest.raises(gr.Error, match="^'as it is'$"):
        guard(work)


@pytest.mark.parametrize("words", SPOILT)
def test_a_spoilt_draft_counts_as_none(context, words):
    for name in ("draft.json", "draft.typed.json"):
        (context.workspace.root / name).write_text(words, encoding="utf-8")
    assert context.draft() == context.desk.recipes.demo()
    assert set(context.typed()) <= {"name"}


@pytest.mark.parametrize("words", SPOILT)
def test_spoilt_settings_count_as_none(context, words):
    context.workspace.settings.write_text(words, encoding="utf-8")
    assert context.theme() == ""


def test_settings_written_by_notepad_are_read(context):
    context.workspace.settings.write_text('\ufeff{"theme": "dark"}', encoding="utf-8")
    assert context.theme() == "dark"


def test_half_an_emoji_costs_a_question_mark(context):
    said = {"do": "save\ud83d", "value": "\ude00", "form": {"name": "x\ud83d", "on": True}}
    assert read_said(said) == ("save?", "?", {"name": "x?", "on": True})
    knobs = {knob.path: knob for knob in knobs_of(Recipe)}
    recipe = read_recipe(knobs, {"name": "a\ud83d", "model.source": "demo", "data.source": "demo"})
    assert recipe.name == "a?"
    context.keep_draft(recipe, {"name": "a\ud83d"})
    assert context.draft() == recipe and context.typed() == {"name": "a?"}


def test_a_draft_of_any_words_comes_back(context):
    recipe = Recipe(model=ModelChoice(source="C:\\模型 'x\""), data=DatasetSpec(source="~nobody-there/x"))
    recipe = change_recipe(recipe, {"name": "x" * 200_000})
    context.keep_draft(recipe)
    assert context.draft() == recipe


def test_of_the_runs_that_were_shown_the_last_stay_in_memory(context, fake_desk):
    runs = [f"run-{number}" for number in range(2 * KEPT_VIEWS)]
    fake_desk.log |= {run: [PhaseStarted(phase="train", seq=1)] for run in runs}
    for run in runs:
        context.view(runs[0])  # the one that everybody watches
        context.view(run)
    read = len(fake_desk.asked)
    assert [context.view(run).phase for run in (runs[0], runs[-1], runs[1])] == ["train"] * 3
    assert fake_desk.asked[read:] == [(runs[0], 1), (runs[-1], 1), (runs[1], 0)], "one that went is made anew"


def test_no_view_is_kept_of_a_run_that_is_gone(context, fake_desk):
    fake_desk.log["gone"] = [PhaseStarted(phase="train", seq=1)]
    context.view("gone")
    events = fake_desk.log.pop("gone")
    with pytest.raises(KeyError):
        context.view("gone")
    fake_desk.log["gone"] = events
    context.view("gone")
    assert fake_desk.asked[-1] == ("gone", 0)


@pytest.mark.parametrize("seconds", [-1.0, -1e300, float("nan"), float("inf"), 1e300])
def test_a_duration_that_is_none_is_shown_as_nought(seconds):
    """A clock that is set back in mid-run gives negative ones."""
    assert time_words(seconds) == format_duration(seconds) == "0:00"
