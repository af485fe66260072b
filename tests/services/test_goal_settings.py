"""Settings in plain words: sensible figures for every size of data and model, and every choice recognised again."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from studio.core.facts import MachineFacts
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe, read_value
from studio.services.goal_settings import (
    CONTROLS,
    GOALS,
    LENGTHS,
    OWN,
    ROOMS,
    STRENGTHS,
    Scope,
    Wish,
    apply,
    apply_to,
    count_steps,
    make_scope,
    recognise,
)
from studio.services.recipes import DEMO_RECIPE, read_recipe

EVERY_WISH = [Wish(**dict(zip(CONTROLS, one, strict=True))) for one in product(*CONTROLS.values())]
PLAIN = Recipe(model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))
FULL = change_recipe(PLAIN, {"adapter.method": "full"})
USUAL = Wish(goal="style", length="balanced", strength="normal", room="auto")
GB = 2**30
SCOPES = {
    "unknown": Scope(),
    "tiny model": Scope(rows=400, parameters=5_000_000),
    "50 rows": Scope(rows=50, parameters=int(8e9), vram_bytes=24 * GB, four_bit=True),
    "50,000 rows": Scope(rows=50_000, parameters=int(1e9), vram_bytes=12 * GB, four_bit=True),
    "70B": Scope(rows=5000, parameters=int(70e9), vram_bytes=80 * GB, four_bit=True),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
@pytest.mark.parametrize("recipe", [PLAIN, FULL], ids=["adapter", "full"])
def test_every_choice_is_recognised_as_what_it_is(recipe, scope):
    for wish in EVERY_WISH:
        assert recognise(apply_to(wish, recipe, scope), scope) == wish


@pytest.mark.parametrize("rows", [1, 12, 50, 300, 1000, 5000, 50_000, 2_000_000])
def test_lengths_stay_between_useful_bounds(rows):
    for goal in GOALS:
        steps = [
            count_steps(apply_to(replace(USUAL, goal=goal, length=length), PLAIN, Scope(rows=rows)), rows)
            for length in LENGTHS
        ]
        assert steps == sorted(steps) and steps[0] <= 100 and steps[-1] <= 20_000
        if goal != "continue" and rows >= 50:
            assert steps[1] >= 50 and steps[2] > steps[1]


def test_few_rows_are_gone_through_often_and_many_once():
    epochs = {
        rows: read_value(apply_to(USUAL, PLAIN, Scope(rows=rows)), "optim.epochs") for rows in (50, 50_000)
    }
    assert epochs == {50: 8.0, 50_000: 1.0}
    assert apply_to(USUAL, PLAIN, Scope(rows=50_000)).optim.max_steps == 3000
    assert apply_to(USUAL, PLAIN, Scope(rows=50)).optim.max_steps == 0


def test_strength_differs_for_full_training_and_for_small_and_large_models():
    def rate(recipe: Recipe, parameters: float) -> float:
        return apply_to(USUAL, recipe, Scope(parameters=int(parameters))).optim.learning_rate

    assert [rate(PLAIN, size) for size in (5e6, 8e9, 70e9)] == [2e-3, 2e-4, 1e-4]
    assert [rate(FULL, size) for size in (5e6, 8e9)] == [2e-4, 2e-5]
    assert "adapter.rank" not in {change.path for change in apply(USUAL, FULL, Scope())}
    ranks = [apply_to(replace(USUAL, strength=name), PLAIN, Scope()).adapter.rank for name in STRENGTHS]
    assert ranks == [8, 16, 32]


@pytest.mark.parametrize("batch", [8, 1, 15, 64])
def test_memory_or_speed_never_changes_the_effective_batch(batch):
    recipe = change_recipe(PLAIN, {"optim.batch_size": batch})
    sizes = []
    for room in ROOMS:
        made = apply_to(replace(USUAL, room=room), recipe, SCOPES["50 rows"])
        assert made.optim.batch_size == batch
        sizes.append(made.optim.micro_batch)
    assert sizes == [0, 1, 0]


def test_four_bits_only_where_they_can_be_used_and_help():
    def quantization(room: str, recipe: Recipe = PLAIN, **changes: object) -> str:
        scope = replace(SCOPES["50 rows"], **changes)
        return apply_to(replace(USUAL, room=room), recipe, scope).model.quantization

    assert quantization("auto") == "nf4"  # 16 GB of weights on 24 GB
    assert quantization("auto", parameters=int(1e9)) == "none"
    assert quantization("save", parameters=int(1e9)) == "nf4"
    assert quantization("fast") == "none" and quantization("fast", vram_bytes=12 * GB) == "nf4"
    assert {quantization(room, four_bit=False) for room in ROOMS} == {"none"}
    assert {quantization(room, FULL) for room in ROOMS} == {"none"}


def test_what_a_person_changes_is_their_own_alone():
    scope = SCOPES["tiny model"]
    made = apply_to(USUAL, PLAIN, scope)
    assert recognise(change_recipe(made, {"adapter.rank": 17}), scope) == replace(USUAL, strength=OWN)
    assert recognise(change_recipe(made, {"optim.epochs": 3.5}), scope) == replace(USUAL, length=OWN)
    assert recognise(change_recipe(made, {"data.train_on": "last_answer"}), scope) == replace(USUAL, goal=OWN)
    assert recognise(change_recipe(made, {"data.fill": True}), scope) == replace(USUAL, room=OWN)


def test_the_demo_learns_a_format_as_usual():
    assert recognise(read_recipe(DEMO_RECIPE), SCOPES["tiny model"]) == replace(USUAL, goal="format")


def test_own_decides_nothing():
    assert apply(Wish(), PLAIN, Scope()) == ()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_value_says_why(language):
    words = load_catalogue(language)
    for scope in SCOPES.values():
        for wish in EVERY_WISH:
            for change in apply(wish, PLAIN, scope):
                said = words.say(change.reason)
                assert said and "{" not in said and not said.startswith("plain.")


def test_the_scope_of_a_machine_without_a_card():
    machine = MachineFacts(system="Linux", wsl=False, python="3.11", cores=2, ram_bytes=8 * GB, packages={})
    assert make_scope(PLAIN, machine, None, 7) == Scope(rows=7)
    assert set(CONTROLS) == {"goal", "length", "strength", "room"}
