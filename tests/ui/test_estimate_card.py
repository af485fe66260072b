"""The card beside the tabs of a run: what it shows of an estimate, what counts as settled, when it is drawn."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from html import unescape

import pytest

from studio.core.errors import Problem, StudioError
from studio.core.i18n import literal, load_catalogue, text
from studio.core.recipe import change_recipe
from studio.machine.workspace import open_workspace
from studio.services.dataset_session import Look
from studio.services.recipe_problems import SourceProblem
from studio.services.recipes import DEMO_RECIPE, read_recipe
from studio.services.throughput_history import Throughput
from studio.ui.context import Context
from studio.ui.estimate_card.card import RunCard
from studio.ui.estimate_card.view import GROUPS, STEPS, checks_list, list_done, run_card
from studio.ui.field_badges import tab_of
from studio.ui.form import Form
from studio.ui.tabs.training.cards import check_card
from tests.doubles.model_desk import CardDesk
from tests.ui.sheet import Sheet

ENGLISH = load_catalogue("en")
EVIL = '<img src=x onerror="window.caught=1">'


def problem(field: str, severity: str = "error") -> Problem:
    return Problem(field=field, message=literal(f"wrong {EVIL}"), fix=literal("do <b>"), severity=severity)


@pytest.fixture(scope="module")
def form() -> Form:
    """The components of all knobs: made once, for they hold nothing."""
    recipe = read_recipe(DEMO_RECIPE)
    with Sheet():
        form = Form(load_catalogue("en"), recipe)
        for path in form.knobs:
            form.field(path)
    return form


@pytest.fixture
def card(workspace, keys, form) -> Iterator[RunCard]:
    desk = CardDesk(workspace)
    with Sheet():
        yield RunCard(Context(desk, workspace, keys, "en"), form)
    desk.close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[CardDesk]:
    """A desk that only looks."""
    desk = CardDesk(open_workspace(str(tmp_path_factory.mktemp("looked"))))
    yield desk
    desk.close()


@pytest.fixture(scope="module")
def estimate(desk):
    """That of the demo, data counted."""
    return desk.models.examine(desk.recipes.demo())


def say(id, /, **values) -> str:
    """Speak English."""
    return ENGLISH.say(text(id, **values) if isinstance(id, str) else id)


def words_of(shown: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", shown)))


def test_card_tells_model_data_method_time_disk_and_memory(estimate):
    estimate = dataclasses.replace(
        estimate, steps=1500, pace=Throughput(run="run-1", tokens_per_s=100, step_s=2.0, same_steps=True)
    )
    shown = run_card(estimate, (), say)
    said = words_of(shown)
    for part in ("Demo model 3.7 M", "400 rows", "16-bit LoRA, rank 16 bf16", "about 50:00", "1,500 steps"):
        assert part in said
    needed = f"{estimate.needed_bytes / 2**30:.1f}"
    assert f"Fits: needs {needed} of 10.8 GiB" in said and "10.8 GiB of 12.0 GiB may be used" in said
    assert "run run-1" in unescape(shown) and "Ready to start" in said


def test_time_that_was_never_measured_is_reckoned_and_says_from_what(estimate):
    shown = run_card(estimate, (), say)
    assert "Time about a minute" in words_of(shown) and "what RTX 3060 can compute" in unescape(shown)
    long = dataclasses.replace(estimate.expected, seconds=58_000)
    assert "about 16 hours" in words_of(run_card(dataclasses.replace(estimate, expected=long), (), say))
    unknown = dataclasses.replace(estimate, expected=None)
    assert "after the trial run" in words_of(run_card(unknown, (), say))
    assert "once all rows are counted" in words_of(run_card(dataclasses.replace(unknown, steps=0), (), say))


def test_bar_shows_every_part_once_and_the_limit(estimate):
    named = [name for names in GROUPS.values() for name in names]
    assert set(estimate.parts) <= set(named) and len(named) == len(set(named))
    shown = run_card(estimate, (), say)
    widths = [float(width) for width in re.findall(r'<i class="\w+" style="width:([\d.]+)%">', shown)]
    assert sum(widths) == pytest.approx(100 * estimate.needed_bytes / estimate.has_bytes, abs=0.1)
    assert 'style="left:90.00%"' in shown
    large = dataclasses.replace(estimate, parts={"weights": 30 * 2**30}, verdict="no")
    over = run_card(large, (), say)
    assert (
        'data-verdict="no"' in over and "Too much: needs 30.0 of 10.8 GiB" in over and "width:100.00%" in over
    )


def test_model_of_the_hub_of_which_nothing_is_known_has_no_bar(desk):
    recipe = change_recipe(desk.recipes.demo(), {"model.source": "org/new"})
    estimate = desk.models.judge(recipe)
    shown = run_card(estimate, None, say)
    assert 'data-verdict="unknown"' in shown and "size not known" in shown and "Checking" in shown


@pytest.mark.parametrize(
    "field, tab",
    [
        ("model.source", "model"),
        ("data.max_length", "dataset"),
        ("optim.epochs", "hyperparameters"),
        ("name", "hyperparameters"),
        ("", "training"),
    ],
)
def test_problem_leads_to_the_tab_of_its_field(field, tab):
    assert tab_of(field) == tab
    shown = checks_list([problem(field)], say)
    assert f'data-go="{tab}"' in shown and "<img" not in shown and "To fix: 1" in shown


def test_problem_leads_to_the_field_itself():
    assert 'data-mark="knob-optim-epochs"' in checks_list([problem("optim.epochs")], say)
    assert "data-mark" not in checks_list([problem("")], say)


def test_a_question_about_the_data_is_answered_where_it_is_asked():
    error = StudioError(
        text("data.unclear"), literal("Which?"), text("data.unclear.fix", field="f", choices="a")
    )
    asked = SourceProblem(field="data.source", message=literal("Which?"), fix=error.fix, error=error)
    for shown in (checks_list([asked], say), check_card([asked], read_recipe(DEMO_RECIPE), say)):
        assert 'data-go="dataset" data-mark="dataset-questions"' in shown
        assert "Answer it in the Dataset tab." in shown and "one of" not in shown
    gone = StudioError(text("data.empty"), literal("why"), literal("look elsewhere"))
    other = SourceProblem(field="data.source", message=literal("Gone"), fix=gone.fix, error=gone)
    shown = check_card([other], read_recipe(DEMO_RECIPE), say)
    assert 'data-mark="dataset-source"' in shown and "look elsewhere" in shown


def test_warnings_alone_are_told_as_such_and_many_are_counted():
    shown = checks_list([problem("optim.epochs", "warning")] * 6, say)
    assert "Good to know: 6" in shown and shown.count("<li") == 4 and "2 more" in shown


# What is settled -----------------------------------------------------------------------------------------------------


def test_settled_steps_of_the_demo(estimate):
    assert list_done(estimate, ()) == ["model", "dataset", "hyperparameters"]
    assert list_done(dataclasses.replace(estimate, has_finished_run=True), ())[-1] == "training"
    assert list_done(estimate, None) == ["model"], "what was not checked is not settled"


@pytest.mark.parametrize(
    "field, missing",
    [("model.source", "model"), ("data.source", "dataset"), ("optim.epochs", "hyperparameters")],
)
def test_error_unsettles_its_own_step_alone(estimate, field, missing):
    assert missing not in list_done(estimate, (problem(field),))
    assert len(list_done(estimate, (problem(field),))) == 2
    assert len(list_done(estimate, (problem(field, "warning"),))) == 3


@pytest.mark.parametrize(
    "look, settled",
    [
        (Look(), True),
        (Look(state="done", report={"format": "alpaca", "needs_answer": []}), True),
        (Look(state="measuring", report={"format": "alpaca", "needs_answer": []}), True),
        (Look(state="done", report={"format": "alpaca", "needs_answer": [{"question": 1}]}), False),
        (Look(state="done", report={"format": None, "needs_answer": []}), False),
        (Look(state="done", report={"format": "kto", "needs_answer": []}), True),
        (Look(state="done", report={"format": "vision", "needs_answer": []}), False),
        (Look(state="done", report={"format": "alpaca", "refusal": object()}), False),
        (Look(state="remote"), False),
        (Look(state="failed", report={"format": "alpaca"}), False),
    ],
)
def test_data_is_settled_when_its_look_is(estimate, look, settled):
    assert ("dataset" in list_done(dataclasses.replace(estimate, look=look), ())) is settled


def test_model_that_is_too_large_is_not_settled(estimate):
    assert "model" not in list_done(
        dataclasses.replace(estimate, parts={"weights": 30 * 2**30}, verdict="no"), ()
    )
    broken = dataclasses.replace(estimate.model, problem=literal("x"))
    assert "model" not in list_done(dataclasses.replace(estimate, model=broken), ())


# Drawing -------------------------------------------------------------------------------------------------------------


def test_edit_is_drawn_at_once_and_again_with_what_the_check_finds(card):
    card.context.desk.problems = (problem("optim.epochs"),)
    values = card.form.show(card.context.desk.recipes.demo())
    first, second = card.draw(*values)
    assert "Checking" in first and "To fix: 1" in second
    assert len(list(card.draw(*values))) == 1, "the check is not done twice"
    assert len(list(card.draw_draft())) == 2, "but anew when a tab is opened"


def test_half_typed_form_shows_what_is_wrong(card):
    recipe = card.context.desk.recipes.demo()
    values = card.form.show(recipe)
    values[list(card.form.components).index("optim.epochs")] = None
    (shown,) = card.draw(*values)
    assert "To fix: 1" in shown and 'data-go="hyperparameters"' in shown


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_recipe_and_command_can_be_taken_along_and_nothing_becomes_html(card, language):
    card.context.words = load_catalogue(language)
    recipe = change_recipe(
        card.context.desk.recipes.demo(),
        {"name": EVIL, "model.source": f"/{EVIL}", "data.source": f"/x/{EVIL}"},
    )
    *_, shown = card._draw(recipe)
    assert "<img" not in shown and "ui.card" not in shown and "ui.tab" not in shown
    held = re.search(r'<pre id="run-card-recipe" tabindex="0">(.*?)</pre>', shown, re.S)[1]
    assert json.loads(unescape(held))["name"] == EVIL
    assert (
        "train recipe.json" in shown
        and shown.count("data-copy-from=") == 2
        and shown.count("data-save-from=") == 1
    )


def test_next_button_of_every_tab_but_the_last(estimate):
    shown = run_card(estimate, (), say)
    steps = re.findall(r'data-from="(\w+)" data-go="(\w+)"', shown)
    assert steps == list(zip(STEPS, STEPS[1:], strict=False)) and shown.count('id="run-card-next"') == 1


def test_look_at_another_set_does_not_count(card):
    datasets = card.context.desk.datasets
    datasets.look(change_recipe(card.context.desk.recipes.demo(), {"data.source": "/other.csv"}))
    estimate = card.context.desk.models.judge(card.context.desk.recipes.demo())
    assert estimate.look == Look()
