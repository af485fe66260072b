"""The form: every knob has one component with its words, and a recipe survives the way through it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from studio.core.errors import RecipeError
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.core.knob import knobs_of
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.ui import app
from studio.ui.app import build, fill_page
from studio.ui.form import Form, elem_id
from tests.ui.sheet import Sheet

ELEMENT_IDS = Path(__file__).resolve().parents[2] / "docs" / "element_ids.md"
DEMO = Recipe(model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))
CHANGED = change_recipe(
    DEMO,
    {
        "name": "mine",
        "seed": 7,
        "data.mapping": {"prompt": "question", "completion": "answer = final"},
        "data.packing": True,
        "optim.learning_rate": 1e-5,
        "optim.schedule": "wsd",
        "run.eval_every": 5,
    },
)


@pytest.fixture(scope="module")
def form() -> Form:
    with Sheet():
        made = Form(load_catalogue("en"), DEMO)
        for path in made.knobs:
            made.field(path)
    return made


@pytest.mark.parametrize("recipe", [DEMO, CHANGED], ids=["defaults", "changed"])
def test_a_recipe_survives_the_form(form, recipe):
    assert form.read(form.show(recipe)) == recipe


def test_every_problem_of_the_form_is_named_at_once(form):
    values = form.show(DEMO)
    paths = list(form.components)
    values[paths.index("optim.weight_decay")] = None
    values[paths.index("adapter.rank")] = "16.5"
    values[paths.index("optim.epochs")] = "three"
    values[paths.index("data.mapping")] = "question"
    with pytest.raises(RecipeError) as refused:
        form.read(values)
    assert {problem.field for problem in refused.value.problems} == {
        "optim.weight_decay", "adapter.rank", "optim.epochs", "data.mapping",
    }  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_window_holds_every_knob_once_with_its_words(context, language):
    context.speak(language)
    blocks = build(context)
    parts = [part["props"] for part in blocks.get_config_file()["components"]]
    ids = [part["elem_id"] for part in parts if part.get("elem_id")]
    assert len(ids) == len(set(ids))
    for knob in knobs_of(Recipe):
        part = next(part for part in parts if part.get("elem_id") == elem_id(knob.path))
        assert part["label"].startswith(context.say(knob.label))
        assert part["info"] == context.say(knob.help)


def test_the_listed_ids_are_those_of_the_window(context):
    """docs/element_ids.md lists them with their English labels."""
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]*) \| ([^|]*) \|$", ELEMENT_IDS.read_text("utf-8"), re.M)
    parts = {
        part["props"].get("elem_id"): part["props"] for part in build(context).get_config_file()["components"]
    }
    knobs = {elem_id(knob.path) for knob in knobs_of(Recipe)}
    labels = {name: label.strip() for name, _, label in listed}
    assert {name: parts[name]["label"] for name in knobs} == {name: labels.get(name) for name in knobs}
    assert {name for name, _, _ in listed} <= parts.keys()


@pytest.mark.computing
def test_both_languages_have_the_same_components(context):
    shapes = []
    for language in LANGUAGES:
        context.speak(language)
        parts = build(context).get_config_file()["components"]
        shapes.append([(part["id"], part["type"], part["props"].get("elem_id")) for part in parts])
    assert shapes[0] == shapes[1]


def test_the_draft_survives_a_reload(context):
    context.keep_draft(CHANGED, {"optim.epochs": "1e-"})
    assert (context.draft(), context.typed()) == (CHANGED, {"optim.epochs": "1e-"})
    made = next(part for part in build(context).blocks.values() if part.elem_id == "knob-optim-epochs")
    assert made.value == "1e-"
    context.keep_draft(CHANGED)
    assert context.typed() == {}
    for words in ("", "[]", '{"name": 3}'):
        (context.workspace.root / "draft.typed.json").write_text(words, encoding="utf-8")
        assert context.typed() == {}
    (context.workspace.root / "draft.json").write_text('{"version": 1, "model": 3}', encoding="utf-8")
    assert context.draft() == context.desk.recipes.demo()


def test_what_is_half_typed_is_kept_beside_the_draft(form):
    recipe, typed, problems = form.read_typed(CHANGED, {"optim.epochs": "1e-"})
    assert (recipe, typed) == (CHANGED, {"optim.epochs": "1e-"})
    assert [problem.message.id for problem in problems] == ["ui.form.not_number"]
    shown = dict(zip(form.components, form.show(recipe, typed), strict=True))
    assert (shown["optim.epochs"], shown["seed"]) == ("1e-", "7")
    recipe, typed, problems = form.read_typed(CHANGED, {"optim.epochs": "1e-1"})
    assert (recipe.optim.epochs, typed, problems) == (0.1, {"optim.epochs": "1e-1"}, ())
    assert form.read_typed(CHANGED, {"optim.epochs": "2"})[1] == {}


@pytest.mark.parametrize("path,raw,id", [
    ("adapter.rank", "", "ui.form.number"),
    ("adapter.rank", None, "ui.form.number"),
    ("adapter.rank", float("nan"), "ui.form.not_number"),
    ("adapter.rank", "2,5", "ui.form.not_whole"),
    ("adapter.rank", "2000", "check.too_high"),
    ("optim.learning_rate", "-1e-4", "check.too_low"),
    ("data.mapping", "prompt", "ui.form.mapping_line"),
])  # fmt: skip
def test_a_value_is_judged_as_it_is_typed(form, path, raw, id):
    [problem] = form.read_typed(DEMO, {path: raw})[2]
    assert (problem.field, problem.message.id) == (path, id)
    for language in LANGUAGES:
        words = load_catalogue(language)
        assert words.has(problem.fix.id) and "{" not in words.say(problem.message) + words.say(problem.fix)


def test_the_draft_is_in_the_page_from_the_start(context):
    blocks = build(context)
    context.keep_draft(CHANGED, {"adapter.rank": "1e"})
    fill_page(blocks, context)
    parts = {part["props"].get("elem_id"): part["props"] for part in blocks.config["components"]}
    assert parts["knob-adapter-rank"]["value"] == "1e"
    assert parts["knob-optim-learning-rate"]["value"] == "0.00001"
    assert parts["knob-data-packing"]["value"] is True
    assert parts["knob-optim-schedule"]["value"] == "wsd"


def test_the_unit_stands_in_the_label(form):
    assert form.components["optim.micro_batch"].label.endswith("(examples)")


def test_importing_the_window_writes_nothing_beside_its_files(form):
    # Gradio writes a .pyi file for every subclass of a component.
    assert list(Path(app.__file__).parent.rglob("*.pyi")) == []


def test_fields_as_they_are_shown_change_nothing(form):
    """Else opening a file would list settings that stay as they are."""
    shown = dict(zip(form.components, form.show(DEMO), strict=True))
    assert form.read_typed(DEMO, shown)[0] == DEMO


@pytest.mark.parametrize("raw", ["auto", " AUTO ", "", None, "0", 0.0])
def test_a_rate_that_nobody_set_reads_auto(form, raw):
    recipe, _, problems = form.read_typed(CHANGED, {"optim.learning_rate": raw})
    assert recipe.optim.learning_rate == 0.0 and not problems
    assert dict(zip(form.components, form.show(recipe), strict=True))["optim.learning_rate"] == "auto"
    recipe, _, problems = form.read_typed(recipe, {"optim.learning_rate": "2e-4"})
    assert recipe.optim.learning_rate == 2e-4 and not problems
