"""Presets: the built-in ones are good recipes, the person's own come and go, none touches model or data."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from studio.core.errors import RecipeError, StudioError
from studio.core.facts import MachineFacts
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe, read_value
from studio.core.run_record import RunRecord
from studio.services.presets import (
    BOUND,
    BUILT_IN,
    RECIPES,
    Presets,
    apply,
    compare,
    read,
    read_built_in,
    write,
)
from studio.services.recipe_problems import find_problems
from studio.services.recipes import DEMO_RECIPE, read_recipe

MINE = change_recipe(
    Recipe(name="mine", model=ModelChoice(source="/models/a"), data=DatasetSpec(source="/data/b.csv")),
    {"adapter.rank": 7, "optim.learning_rate": 3e-4, "data.mapping": {"prompt": "q"}, "data.fill": True},
)
OTHER = Recipe(name="other", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))
POSITIONS = 512
"""The demo model's longest input."""
MACHINE = MachineFacts(
    system="Linux", wsl=False, python="3.11", cores=8, ram_bytes=2**36, packages={"bitsandbytes": "0.50"}
)


@pytest.fixture
def presets(workspace) -> Presets:
    runs = [RunRecord(run="run-1", name="yesterday", state="finished", created_s=1)]
    return Presets(workspace, SimpleNamespace(list=lambda: runs, recipe=lambda run: MINE))


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_is_a_recipe_and_starts_with_the_demo(name):
    assert read_recipe(RECIPES / f"{name}.json").model.source == "demo"
    recipe = apply(read_built_in(name), read_recipe(DEMO_RECIPE), POSITIONS)
    problems = find_problems(recipe, MACHINE, 10**12)
    assert [problem.message.id for problem in problems if problem.severity == "error"] == []
    assert compare(read_recipe(DEMO_RECIPE), recipe)


@pytest.mark.parametrize("language", LANGUAGES)
def test_built_in_has_words(language, presets):
    words = load_catalogue(language)
    for preset in presets.all()[: len(BUILT_IN)]:
        assert words.has(preset.name.id) and words.has(preset.about.id)


def test_every_recipe_file_is_known(presets):
    assert {path.stem for path in RECIPES.glob("*.json")} == {*BUILT_IN, "demo"}


def test_mine_survive_a_restart_and_never_touch_model_or_data(presets, workspace):
    saved = presets.save("  Größe / 風格  ", MINE)
    again = Presets(workspace, SimpleNamespace(list=lambda: [], recipe=lambda run: MINE))
    assert [preset.name.values["words"] for preset in again.all()[len(BUILT_IN) :]] == ["Größe / 風格"]
    made = apply(again.find(saved.id), OTHER)
    assert (made.adapter.rank, made.data.fill) == (7, True)
    assert all(read_value(made, path) == read_value(OTHER, path) for path in BOUND)


def test_a_name_is_one_preset_and_can_be_deleted(presets):
    first = presets.save("Mine", OTHER)
    second = presets.save("mine", MINE)
    assert first.id == second.id and presets.find(first.id).settings["adapter.rank"] == 7
    presets.delete(first.id)
    with pytest.raises(StudioError):
        presets.find(first.id)


@pytest.mark.parametrize("id", ["built_in:style", "run:run-1", "mine:../../draft", "mine:", "x"])
def test_only_what_is_mine_is_deleted(presets, workspace, id):
    (workspace.root / "draft.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StudioError):
        presets.delete(id)
    assert (workspace.root / "draft.json").exists()


@pytest.mark.parametrize("name", ["", "   ", "x" * 61])
def test_a_name_is_needed(presets, name):
    with pytest.raises(StudioError):
        presets.save(name, MINE)


def test_a_run_gives_its_settings(presets):
    preset = presets.find("run:run-1")
    assert preset.settings["adapter.rank"] == 7 and not set(BOUND) & set(preset.settings)


def test_a_damaged_file_hides_no_other(presets):
    presets.save("good", MINE)
    for name, words in (
        ("a", "{"),
        ("b", "[]"),
        ("c", '{"name": "x", "recipe": {"version": 99}}'),
        ("d", '"x"'),
    ):
        (presets.folder / f"{name}.json").write_text(words, encoding="utf-8")
    assert [preset.name.values.get("words") for preset in presets.all()[len(BUILT_IN) : -1]] == ["good"]


def test_differences_are_told_before_anything_changes(presets):
    style = presets.find("built_in:long")
    told = {one.path: (one.before, one.after) for one in compare(OTHER, apply(style, OTHER))}
    assert told["data.max_length"] == (1024, 8192)
    assert compare(OTHER, OTHER) == ()


def test_a_recipe_survives_the_file():
    assert read(write(MINE)) == MINE
    assert read("\ufeff" + write(MINE)) == MINE


def test_a_file_is_read_strictly():
    data = json.loads(write(OTHER))
    data["optim"]["lerning_rate"] = 1
    data["adapter"]["rank"] = "big"
    with pytest.raises(RecipeError) as refused:
        read(json.dumps(data))
    assert {problem.field for problem in refused.value.problems} == {"optim.lerning_rate", "adapter.rank"}


@pytest.mark.parametrize(
    "words", ["", "{", "[]", "3", '"\\ud800"', "[" * 100_000, "x" * 200_001, '{"version": 9}']
)
def test_what_is_no_recipe_is_refused(words):
    with pytest.raises(StudioError):
        read(words)
