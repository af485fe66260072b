"""Dataclasses to JSON and back: nothing is lost, and what does not fit is named, all of it at once."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import get_type_hints

import pytest

from studio.core.codec import event_from_json, from_json, to_json
from studio.core.errors import RecipeError
from studio.core.events import EVENTS, Diagnosis, Fix, RunFailed, StepLogged, Warned
from studio.core.facts import Gpu, MachineFacts
from studio.core.i18n import load_catalogue, text
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe, change_recipe, read_value
from studio.core.run_record import RunRecord

LEAST = {"model": {"source": "demo"}, "data": {"source": "demo"}}


def through_json(value):
    return json.loads(json.dumps(to_json(value), allow_nan=False))


def problems_of(data, cls=Recipe):
    with pytest.raises(RecipeError) as caught:
        from_json(cls, data)
    english = load_catalogue("en")
    assert all(
        english.has(problem.message.id) and english.has(problem.fix.id) for problem in caught.value.problems
    )
    return {
        problem.field: english.say(problem.message) + " " + english.say(problem.fix)
        for problem in caught.value.problems
    }


def sample(hint):
    """A value of the type `hint` in which every field that may hold something does."""
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{part.name: sample(hints[part.name]) for part in dataclasses.fields(hint)})
    simple = {int: 7, float: 0.1, str: "words 词", bool: True}
    if hint in simple:
        return simple[hint]
    inner = getattr(hint, "__args__", ())
    origin = getattr(hint, "__origin__", None)
    if origin is tuple:
        return tuple(sample(part) for part in inner if part is not Ellipsis)
    if type(None) in inner:
        return sample(inner[0])
    if origin in (dict, Mapping):
        return {"key": sample(inner[1])}
    if inner:
        return inner[0]  # a Literal
    return text("sample", n=1)  # Any


@pytest.mark.parametrize("cls", EVENTS, ids=lambda cls: cls.kind)
def test_every_event_comes_back(cls):
    event = sample(cls)
    data = through_json(event)
    assert data["kind"] == cls.kind
    assert event_from_json(data) == event


def test_kinds_are_unique():
    assert len({event.kind for event in EVENTS}) == len(EVENTS)
    assert all(event.kind for event in EVENTS)


@pytest.mark.parametrize("cls", [Recipe, RunRecord, MachineFacts])
def test_every_kept_type_comes_back(cls):
    value = sample(cls)
    assert from_json(cls, through_json(value)) == value


def test_least_recipe_has_every_default():
    recipe = from_json(Recipe, LEAST)
    assert all(
        read_value(recipe, knob.path) == knob.default for knob in knobs_of(Recipe) if not knob.required
    )
    assert from_json(Recipe, through_json(recipe)) == recipe


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_loss_that_is_no_number_comes_back(loss):
    step = dataclasses.replace(sample(StepLogged), loss=loss)
    back = event_from_json(through_json(step))
    assert back.loss == loss or (math.isnan(back.loss) and math.isnan(loss))


def test_all_problems_at_once():
    found = problems_of(
        {
            "model": {"source": "demo", "adaptor": "x"},
            "optim": {"lerning_rate": 1e-3, "epochs": "three", "max_steps": True},
            "limits": [],
            "colour": "red",
        }
    )
    assert set(found) == {
        "model.adaptor",
        "optim.lerning_rate",
        "optim.epochs",
        "optim.max_steps",
        "limits",
        "colour",
        "data.source",
    }
    assert "adapter" in found["model.adaptor"]
    assert "learning_rate" in found["optim.lerning_rate"]
    assert "three" in found["optim.epochs"]


@pytest.mark.parametrize("data", [None, [], "recipe", 3])
def test_recipe_that_is_no_object(data):
    assert set(problems_of(data)) == {""}


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("optim", "micro_batch", 2.5),
        ("optim", "micro_batch", "2"),
        ("optim", "micro_batch", None),
        ("optim", "learning_rate", True),
        ("optim", "learning_rate", "fast"),
        ("data", "packing", 1),
        ("data", "mapping", {"prompt": 3}),
        ("data", "mapping", ["prompt"]),
    ],
)
def test_value_of_a_wrong_type(part, key, value):
    data = {name: dict(given) for name, given in LEAST.items()}
    data.setdefault(part, {})[key] = value
    assert [field for field in problems_of(data) if field.startswith(f"{part}.{key}")]


def test_whole_number_may_be_written_with_a_point_and_the_reverse():
    recipe = from_json(Recipe, LEAST | {"optim": {"micro_batch": 4.0, "learning_rate": 1, "epochs": 2}})
    assert (recipe.optim.micro_batch, recipe.optim.learning_rate) == (4, 1.0)
    assert type(recipe.optim.micro_batch) is int and type(recipe.optim.epochs) is float


def test_state_outside_its_choices():
    assert "state" in problems_of({"run": "a", "name": "a", "state": "asleep", "created_s": 1}, RunRecord)


def test_event_of_another_version_is_passed_over():
    good = through_json(sample(Warned))
    assert event_from_json(good | {"kind": "danced"}) is None
    assert event_from_json({"kind": "warned"}) is None
    assert event_from_json({}) is None
    assert event_from_json(good | {"added_later": 1}) == sample(Warned)


def test_text_inside_a_diagnosis_can_still_be_said_in_either_language():
    diagnosis = Diagnosis(
        id="x",
        what=text("a", why=text("b", n=1)),
        why=text("c"),
        fixes=(Fix(title=text("d"), change={"optim.epochs": 1}),),
    )
    back = event_from_json(through_json(RunFailed(step=1, diagnosis=diagnosis)))
    assert back.diagnosis == diagnosis


def test_tuple_of_fixed_length():
    gpu = Gpu(name="A", vram_bytes=1, capability=(8, 6))
    assert from_json(Gpu, through_json(gpu)) == gpu
    assert "capability" in problems_of({"name": "A", "vram_bytes": 1, "capability": [8]}, Gpu)


def test_change_recipe_leaves_the_rest():
    recipe = from_json(Recipe, LEAST)
    changed = change_recipe(recipe, {"optim.micro_batch": 1, "name": "new"})
    assert (changed.optim.micro_batch, changed.name) == (1, "new")
    assert change_recipe(changed, {"optim.micro_batch": recipe.optim.micro_batch, "name": ""}) == recipe
