"""Runs of every released version can be read: a stored run of each lies in tests/core/stored."""

import json
from pathlib import Path

import pytest

from studio.core.codec import event_from_json, from_json, to_json
from studio.core.errors import StudioError
from studio.core.events import EVENTS, RunFinished, RunPaused, RunUnpaused, StepLogged
from studio.core.i18n import LANGUAGES, Text, load_catalogue
from studio.core.migrate import LIFTS, NEWEST, lift
from studio.core.recipe import (
    OBJECTIVES,
    AdapterSpec,
    DatasetSpec,
    ModelChoice,
    OptimSpec,
    Recipe,
    change_recipe,
    settle_rate,
)
from studio.core.run_record import RunRecord

STORED = sorted((Path(__file__).parent / "stored").iterdir())
TYPES = {"recipe": Recipe, "record": RunRecord}


def texts_in(data):
    """Every recorded text below `data`, as JSON."""
    if isinstance(data, dict):
        if set(data) == {"id", "values"}:
            yield data
        for value in data.values():
            yield from texts_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from texts_in(value)


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", ["recipe", "record"])
def test_a_run_of_every_version_is_stored(kind):
    file = {"recipe": "recipe.json", "record": "run.json"}[kind]
    found = {json.loads((folder / file).read_text(encoding="utf-8"))["version"] for folder in STORED}
    assert found == set(range(1, NEWEST[kind] + 1))


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_stored_run_reads(folder):
    recipe = from_json(
        Recipe, lift("recipe", json.loads((folder / "recipe.json").read_text(encoding="utf-8")))
    )
    record = from_json(
        RunRecord, lift("record", json.loads((folder / "run.json").read_text(encoding="utf-8")))
    )
    assert recipe.name == record.name == "stored 版本1"
    assert (record.state, record.steps, record.artifact) == ("finished", 10, "adapter")
    assert (recipe.optim.learning_rate, recipe.run.eval_every) == (0.01, 4)


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_every_stored_event_reads_and_can_be_said(folder):
    lines = read_lines(folder / "events.jsonl")
    events = [event_from_json(line) for line in lines]
    assert None not in events
    assert [event.seq for event in events] == list(range(1, len(lines) + 1))
    assert sum(isinstance(event, StepLogged) for event in events) == 10
    assert isinstance(events[-1], RunFinished)
    for language in LANGUAGES:
        words = load_catalogue(language)
        assert not [found["id"] for found in texts_in(lines) if not words.has(found["id"])]


def test_stored_run_names_no_folder_of_its_machine():
    for folder in STORED:
        for path in folder.iterdir():
            words = path.read_text(encoding="utf-8")
            assert "/tmp/" not in words and "/home/" not in words and ":\\\\" not in words


def test_texts_of_a_stored_plan_come_back_as_texts():
    plan = next(line for line in read_lines(STORED[0] / "events.jsonl") if line["kind"] == "run_planned")
    event = event_from_json(plan)
    assert isinstance(event.plan.device.reason, Text)
    back = to_json(event)
    assert back["plan"] | plan["plan"] == back["plan"]  # what later studios added stands at its default
    assert back | {"plan": plan["plan"]} == plan | {"metrics": []}


@pytest.mark.parametrize("kind", sorted(NEWEST))
@pytest.mark.parametrize("version", [0, -1, "1", None, 10_000])
def test_unknown_version_is_refused(kind, version):
    with pytest.raises(StudioError) as caught:
        lift(kind, {"version": version})
    english = load_catalogue("en")
    assert all(english.has(part.id) for part in (caught.value.what, caught.value.why, caught.value.fix))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("kind", sorted(NEWEST))
def test_without_a_version_it_is_the_first(kind):
    given = {"name": "x"}
    assert lift(kind, given)["version"] == NEWEST[kind]
    assert given == {"name": "x"}


@pytest.mark.parametrize("version", [1, 2, None])
def test_earlier_names_of_keys_are_read(version):
    old = {
        "model": {"source": "m"},
        "data": {"source": "d", "take": 7},
        "method": "pretrain",
        "adapter": {"method": "full", "targets": "q_proj"},
        "limits": {"device": "cpu"},
    } | ({} if version is None else {"version": version})
    kept = json.dumps(old)
    recipe = from_json(Recipe, lift("recipe", old))
    assert (recipe.objective, recipe.data.max_rows, recipe.run.device) == ("pretrain", 7, "cpu")
    assert (recipe.adapter.target_modules, recipe.adapter.method) == ("q_proj", "full")
    assert json.dumps(old) == kept
    assert change_recipe(recipe, {"limits.device": "gpu", "data.take": 3}) == change_recipe(
        recipe, {"run.device": "gpu", "data.max_rows": 3}
    )


def test_a_key_that_stands_in_both_names_is_refused_by_the_old_one():
    data = {
        "model": {"source": "m"},
        "data": {"source": "d"},
        "limits": {"device": "cpu"},
        "run": {"trial": False},
    }
    with pytest.raises(StudioError) as caught:
        from_json(Recipe, lift("recipe", data))
    assert [problem.field for problem in caught.value.problems] == ["limits"]


def test_every_step_between_versions_has_its_lift():
    assert set(LIFTS) == {(kind, version) for kind, newest in NEWEST.items() for version in range(1, newest)}


def test_lifts_are_done_one_after_the_other(monkeypatch):
    monkeypatch.setitem(NEWEST, "recipe", 3)
    monkeypatch.setitem(LIFTS, ("recipe", 1), lambda data: data | {"first": True})
    monkeypatch.setitem(LIFTS, ("recipe", 2), lambda data: data | {"second": data["first"]})
    assert lift("recipe", {"version": 1}) == {"version": 3, "first": True, "second": True}
    assert lift("recipe", {"version": 3}) == {"version": 3}


def test_pauses_changed_no_version(monkeypatch):
    """Logs of before read (above), and a studio of before passes over what it does not know and reads the rest."""
    events = [StepLogged(step=1, total_steps=2, epoch=0.5, loss=2.0, lr=0.1, grad_norm=1.0, tokens_per_s=9.0)]
    events += [
        RunPaused(seq=2, step=1),
        RunUnpaused(seq=3, step=1),
        RunFinished(step=2, loss=1.0, artifact="adapter"),
    ]
    lines = [json.loads(json.dumps(to_json(event))) for event in events]
    assert [event_from_json(line) for line in lines] == events and NEWEST["events"] == 1
    before = tuple(event for event in EVENTS if event not in (RunPaused, RunUnpaused))
    monkeypatch.setattr("studio.core.codec.EVENTS", before)
    assert [event_from_json(line) for line in lines] == [events[0], None, None, events[3]]


def test_pauses_can_be_said():
    from studio.cli.console import describe

    for language in LANGUAGES:
        words = load_catalogue(language)
        said = [words.say(describe(event(step=7))) for event in (RunPaused, RunUnpaused)]
        assert all("7" in each and "event." not in each for each in said) and said[0] != said[1]


@pytest.mark.parametrize("kind", list(NEWEST))
@pytest.mark.parametrize("data", [None, [1], "abc", 12, [[]]])
def test_a_file_that_holds_no_object_is_refused(kind, data):
    with pytest.raises(StudioError) as refused:
        lift(kind, data)
    assert refused.value.why.id == "migrate.not_object"


def test_a_rate_of_2e_4_that_a_studio_wrote_was_unset_and_one_that_a_person_wrote_is_theirs():
    def rate(method="lora", **recipe):
        parts = {"model": {"source": "m"}, "data": {"source": "d"}, "adapter": {"method": method}}
        return from_json(Recipe, lift("recipe", parts | recipe)).optim.learning_rate

    whole = to_json(OptimSpec()) | {"learning_rate": 2e-4}
    assert rate(version=2, optim=whole) == rate(version=2, optim=whole, objective="dpo") == 0
    assert rate("full", version=2, optim=whole, objective="dpo") == 0
    assert rate("full", version=2, optim=whole, objective="sft") == 2e-4, "it was trained by it"
    assert rate(version=2, optim=whole | {"learning_rate": 3e-4}) == 3e-4
    for version in (1, 2, 3):
        assert rate(version=version, optim={"learning_rate": 2e-4}, objective="dpo") == 2e-4
    assert rate(version=3, optim=whole, objective="dpo") == 2e-4


@pytest.mark.parametrize("objective", [one for one in OBJECTIVES if one != "auto"])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_every_objective_has_a_usual_rate_and_a_set_one_stays(objective, method):
    recipe = Recipe(
        objective=objective,
        model=ModelChoice(source="m"),
        data=DatasetSpec(source="d"),
        adapter=AdapterSpec(method=method),
    )
    usual = settle_rate(recipe).optim.learning_rate
    learned = objective in ("sft", "pretrain", "weighted_sft")
    assert usual == (2e-4 if method == "lora" else 2e-5) if learned else 0 < usual <= 1e-4
    for rate in (2e-4, 2e-5, usual, 1.0, 1e-12):
        set_by_hand = change_recipe(recipe, {"optim.learning_rate": rate})
        assert settle_rate(set_by_hand) == set_by_hand
