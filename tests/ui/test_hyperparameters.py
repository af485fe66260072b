"""The Hyperparameters screen: plain controls set and recognise, presets are told first, edits are kept and marked."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from html.parser import HTMLParser

import gradio as gr
import pytest

from studio.core.errors import Problem, StudioError
from studio.core.i18n import LANGUAGES, literal
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe, change_recipe, read_value
from studio.services.goal_settings import CONTROLS, Wish, apply
from studio.services.presets import Presets, write
from studio.services.recipes import DEFAULTS, DEMO_RECIPE, read_recipe
from studio.ui.field_badges import changed_knobs, elem_id, mark_changes, mark_problems
from studio.ui.form import Form
from studio.ui.tabs.hyperparameters.cards import plain_card
from studio.ui.tabs.hyperparameters.tab import BESIDE_PLAIN, COMMON, HyperparametersTab
from tests.each_time import every
from tests.services.test_goal_settings import EVERY_WISH
from tests.ui.conftest import FakeDesk
from tests.ui.sheet import Sheet

EVIL = "<img src=x onerror=alert(1)>"


@dataclass
class SettingsDesk(FakeDesk):
    """A desk with presets; all models but the demo's have eight billion weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.presets = Presets(self.workspace, self)

    def inspect(self, source: str):
        known = super().inspect(source)
        return known if source == "demo" else replace(known, parameters=int(8e9))


@pytest.fixture
def tab(workspace, keys) -> HyperparametersTab:
    """The screen with all fields of the form."""
    from studio.ui.context import Context

    desk = SettingsDesk(workspace, log={"run-1": []})
    context = Context(desk, workspace, keys, "en")
    with Sheet():
        form = Form(context.words, context.draft())
        made = HyperparametersTab(context, form)
        form.fields([path for path in form.knobs if path not in form.components])
        made.bind(gr.HTML().change)
    return made


@dataclass
class Answer:
    """What a handler sent to the page."""

    marks: dict
    plain: str
    note: str
    presets: str
    fields: dict


def hear(
    tab: HyperparametersTab, do: str, value: str = "", form: dict | None = None, **changes: object
) -> Answer:
    """What happens when a part says `do`; `changes` are values of fields by path with __ for dots."""
    shown = dict(
        zip(tab.form.components, tab.form.show(tab.context.draft(), tab.context.typed()), strict=True)
    )
    shown |= {path.replace("__", "."): raw for path, raw in changes.items()}
    said = {"do": do, "value": value, "form": form or {}, "number": 1}
    marks, plain, note, presets, *fields = tab.hear(said, *shown.values())
    return Answer(marks, plain, note, presets, dict(zip(tab.form.components, fields, strict=True)))


class Found(HTMLParser):
    """Elements and their attributes."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.parts: list[tuple[str, dict]] = []
        self.feed(words)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.parts.append((tag, dict(attributes)))

    def chosen(self) -> list[str]:
        return [attributes["data-chosen"] for _, attributes in self.parts if "data-chosen" in attributes]


def test_a_goal_sets_its_values_and_says_so(tab):
    hear(tab, "room", "auto")
    answer = hear(tab, "goal", "facts")
    recipe = tab.context.draft()
    assert recipe.adapter.rank == 64 and answer.fields["adapter.rank"] == "64"
    assert Found(answer.plain).chosen() == ["facts", "balanced", "normal", "auto"]
    assert "Settings changed" in answer.note and 'data-do="undo"' in answer.note
    assert elem_id("adapter.rank") in answer.marks["changed"]


def test_every_choice_is_shown_as_chosen(tab):
    for control, choices in CONTROLS.items():
        for choice in choices:
            answer = hear(tab, control, choice)
            assert Found(answer.plain).chosen()[list(CONTROLS).index(control)] == choice


def test_undo_brings_back_what_was_there_once(tab):
    before = change_recipe(tab.context.draft(), {"adapter.rank": 17})
    tab.context.keep_draft(before)
    hear(tab, "strength", "strong")
    assert tab.context.draft().adapter.rank != 17
    assert hear(tab, "undo").fields["adapter.rank"] == "17"
    assert tab.context.draft() == before
    hear(tab, "undo")
    assert tab.context.draft() == before


def test_undo_takes_back_no_more_than_the_change_set(tab):
    hear(tab, "goal", "facts")
    tab.context.edit({"model.source": "/big", "name": "mine", "adapter.rank": 5})
    tab.keeper("optim.epochs")("1e-")
    answer = hear(tab, "undo")
    draft = tab.context.draft()
    assert (draft.model.source, draft.name, draft.adapter.rank) == ("/big", "mine", 5)
    assert draft.adapter.alpha == 32.0 and answer.fields["adapter.alpha"] == "32"
    assert tab.context.typed() == {"optim.epochs": "1e-"} and answer.fields["optim.epochs"] == gr.skip()
    assert answer.fields["adapter.rank"] == gr.skip() and "2" in answer.note


def test_a_choice_writes_no_old_values_over_newer_ones(tab):
    shown = dict(zip(tab.form.components, tab.form.show(tab.context.draft()), strict=True))
    tab.context.edit({"seed": 9, "data.source": "/new.csv"})  # meanwhile, or in another window
    said = {"do": "goal", "value": "facts", "form": {}, "number": 1}
    answer = tab.hear(said, *shown.values())[4:]
    draft = tab.context.draft()
    assert (draft.seed, draft.data.source, draft.adapter.rank) == (9, "/new.csv", 64)
    assert answer[list(shown).index("seed")] == gr.skip()


@pytest.mark.parametrize(
    "do,value", every(2, [("goal", "preference"), ("goal", EVIL), ("room", ""), ("__class__", "x"), ("", "")])
)
def test_what_no_control_says_changes_nothing(tab, do, value):
    before = tab.context.draft()
    hear(tab, do, value)
    assert tab.context.draft() == before


def test_an_edit_is_kept_at_once_alone_and_half_typed(tab):
    tab.context.keep_draft(change_recipe(tab.context.draft(), {"seed": 9}))
    marks, plain = tab.keeper("optim.learning_rate")("3e-")
    assert tab.context.typed() == {"optim.learning_rate": "3e-"} and tab.context.draft().seed == 9
    assert marks["of"] == "knob-optim-learning-rate" and marks["problems"][0]["severity"] == "error"
    marks, plain = tab.keeper("optim.learning_rate")("3e-4")
    assert tab.context.draft().optim.learning_rate == 3e-4 and marks["problems"] == []
    assert Found(plain).chosen()[2] == "own"
    tab.keeper("adapter.rank")("9")  # another page's edit of another field takes nothing back
    assert (tab.context.draft().optim.learning_rate, tab.context.draft().adapter.rank) == (3e-4, 9)


def test_a_half_typed_field_survives_a_choice_that_does_not_set_it(tab):
    tab.keeper("seed")("")
    answer = hear(tab, "goal", "format", seed="")
    assert answer.fields["seed"] == gr.skip() and tab.context.typed() == {"seed": ""}
    assert [one["elem_id"] for one in answer.marks["problems"]] == ["knob-seed"]


def test_reset_of_one_field_and_of_all(tab):
    tab.context.keep_draft(
        change_recipe(
            tab.context.draft(),
            {"adapter.rank": 9, "optim.epochs": 7.0, "data.source": "/a.csv", "name": "n"},
        )
    )
    answer = hear(tab, "reset", "knob-adapter-rank", adapter__rank="x")
    assert answer.fields["adapter.rank"] == "16" and tab.context.draft().optim.epochs == 7.0
    answer = hear(tab, "reset_all")
    recipe = tab.context.draft()
    assert (recipe.optim.epochs, recipe.data.source, recipe.name) == (3.0, "/a.csv", "n")
    assert recipe.data.max_length == 512, "all that it reads"
    assert changed_knobs(recipe) == () and answer.marks["changed"] == {}, (
        "what follows the model is not changed"
    )
    tab.context.keep_draft(change_recipe(recipe, {"data.max_length": 1024}))
    assert "512" in mark_changes(tab.context.draft(), tab.context.words)["changed"]["knob-data-max-length"]
    answer = hear(tab, "reset", "knob-data-max-length")
    assert answer.fields["data.max_length"] == "512" and answer.marks["changed"] == {}
    hear(tab, "reset", "model-source")
    assert tab.context.draft().model.source == "demo"


def test_plain_choices_follow_another_model_and_own_values_stay(tab):
    hear(tab, "goal", "style")
    assert tab.context.draft().optim.learning_rate == 2e-3
    tab.context.keep_draft(change_recipe(tab.context.draft(), {"model.source": "/big"}))
    answer = hear(tab, "look")
    assert answer.fields["optim.learning_rate"] == "0.0002" and 'data-do="undo"' in answer.note
    assert hear(tab, "look").fields["optim.learning_rate"] != "0.0002", "nothing more to change"
    tab.keeper("optim.learning_rate")("0.0007")
    tab.context.keep_draft(change_recipe(tab.context.draft(), {"model.source": "demo"}))
    hear(tab, "look")
    assert tab.context.draft().optim.learning_rate == 7e-4


def test_the_demos_own_settings_go_with_the_demo(tab):
    """Nobody set them; a person's own rows were cut at 512 tokens, under a learning rate ten times too high."""
    tab.context.keep_draft(change_recipe(read_recipe(DEMO_RECIPE), {"optim.weight_decay": 0.3}))
    tab.follow()
    tab.context.edit({"model.source": "/big"})
    tab.follow()
    recipe = tab.context.draft()
    assert (recipe.optim.schedule, recipe.optim.warmup_share, recipe.data.max_length) == (
        "cosine",
        0.03,
        1024,
    )
    assert recipe.optim.weight_decay == 0.3, "what a person set stays"
    assert recipe.optim.learning_rate == 2e-4
    assert (recipe.adapter.rank, recipe.adapter.alpha) == (DEFAULTS.adapter.rank, DEFAULTS.adapter.alpha)
    assert (recipe.data.too_long, recipe.data.reasoning) == (DEFAULTS.data.too_long, DEFAULTS.data.reasoning)
    tab.context.edit({"model.source": "demo"})
    answer = tab.follow()
    demo = read_recipe(DEMO_RECIPE)
    assert changed_between(tab.context.draft(), demo) == ["optim.weight_decay"]
    assert answer[4 + list(tab.form.components).index("data.max_length")] == "512"


def changed_between(one, other) -> list[str]:
    return [
        knob.path for knob in knobs_of(Recipe) if read_value(one, knob.path) != read_value(other, knob.path)
    ]


def test_settings_that_come_with_a_model_stay(tab):
    hear(tab, "goal", "style")
    again = {"model.source": "/big", "optim.learning_rate": 5e-4, "optim.epochs": 3.0}
    tab.context.keep_draft(change_recipe(tab.context.draft(), again))
    hear(tab, "look")
    assert tab.context.draft().optim.learning_rate == 5e-4


def test_a_preset_is_told_before_it_is_applied(tab):
    before = tab.context.draft()
    told = hear(tab, "preset", "built_in:low_memory").presets
    assert tab.context.draft() == before
    assert "4 bits (nf4)" in told and 'data-value="built_in:low_memory"' in told
    assert hear(tab, "preset_apply", "built_in:low_memory").fields["model.quantization"] == "nf4"
    assert hear(tab, "undo").fields["model.quantization"] == "none"
    assert "None" in hear(tab, "preset", "built_in:low_memory").presets


def test_own_presets_are_saved_offered_and_deleted_and_no_name_becomes_html(tab):
    listed = hear(tab, "preset_save", form={"name": EVIL}, adapter__rank="9").presets
    assert EVIL not in listed and "&lt;img" in listed
    [mine] = [preset for preset in tab.context.desk.presets.all() if preset.kind == "mine"]
    hear(tab, "reset_all")
    details = hear(tab, "preset", mine.id).presets
    assert EVIL not in details and "preset_delete" in details
    assert hear(tab, "preset_apply", mine.id).fields["adapter.rank"] == "9"
    assert mine.id not in hear(tab, "preset_delete", mine.id).presets
    with pytest.raises(StudioError):
        hear(tab, "preset_apply", mine.id)


def test_a_runs_settings_can_be_taken(tab):
    assert "run:run-1" in hear(tab, "look").presets
    assert "preset_apply" in hear(tab, "preset", "run:run-1", adapter__rank="9").presets


def test_import_shows_what_is_wrong_or_what_would_change(tab):
    wanted = change_recipe(tab.context.draft(), {"adapter.rank": 5, "data.source": "/mine.csv"})
    data = json.loads(write(wanted))
    data["adapter"]["rnak"] = 1
    told = hear(tab, "import", json.dumps(data)).presets
    assert "rnak" in told and "rank" in told and "preset_apply" not in told
    assert (
        "JSON" in hear(tab, "import", "{" + EVIL).presets
        and EVIL not in hear(tab, "import", "{" + EVIL).presets
    )
    assert "/mine.csv" in hear(tab, "import", write(wanted)).presets
    assert tab.context.draft() != wanted
    hear(tab, "preset_apply", "file:imported")
    assert tab.context.draft() == wanted


def test_a_file_of_another_tool_shows_what_became_of_each_setting(tab):
    kept = tab.context.draft()
    words = f"base_model: org/model\nadapter: lora\nlora_r: 12\nsequence_len: 777\nval_set_size: 0.1\nmine: '{EVIL}'\n"
    told = hear(tab, "import", words, {"name": "C:\\configs\\my.yml"}).presets
    assert "lora_r" in told and "org/model" in told and "preset_apply" in told and EVIL not in told
    hear(tab, "preset_apply", "file:imported")
    made = tab.context.draft()
    assert (made.adapter.rank, made.data.max_length, made.model.source) == (12, 777, "org/model")
    assert made.data.source == kept.data.source  # the file names none
    refused = hear(tab, "import", words.replace("adapter: lora", "adapter: reft"), {"name": "my.yml"}).presets
    assert "reft" in refused and "preset_apply" not in refused
    assert (
        "preset_apply"
        in hear(
            tab,
            "import",
            json.dumps({"model_name_or_path": "a/b", "stage": "sft", "cutoff_len": 9}),
            {"name": "a.json"},
        ).presets
    )


def test_export_gives_a_file_of_a_plain_name(tab):
    name = change_recipe(tab.context.draft(), {"name": "../a b/<c>"})
    tab.context.keep_draft(name)
    download = hear(tab, "export").marks["download"]
    assert download["text"] == write(name) and download["name"] == "---a-b--c-.json"


def test_problems_of_the_check_stand_beside_their_fields(tab):
    problem = Problem(field="data.source", message=literal(EVIL), fix=literal("fix"), severity="warning")
    tab.context.desk.problems = (
        problem,
        Problem(field="", message=literal("disk"), fix=literal("free some")),
    )
    html, plan, marks = tab.examine_and_mark(*tab.form.show(tab.context.draft()))
    assert EVIL not in html and plan == ""
    assert marks["of"] == "" and marks["problems"] == [
        {"elem_id": "dataset-source", "message": f"{EVIL} fix", "severity": "warning"}
    ]
    again = mark_problems((problem,), tab.context.words)
    assert again["number"] != marks["number"], "a value that is the same is not heard"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_state_of_the_plain_controls_has_words(tab, language):
    tab.context.speak(language)
    scope, recipe = tab.scope(tab.context.draft()), tab.context.draft()
    assert scope.rows == 380, "5 % are held out"
    for wish in (*EVERY_WISH, Wish()):
        words = plain_card(wish, apply(wish, recipe, scope), tab.context.words, tab.context.say)
        assert "plain." not in words and "knob." not in words and "{" not in words


def test_lists_of_fields_name_knobs(tab):
    assert set(COMMON) | set(BESIDE_PLAIN) <= set(tab.form.knobs)
