"""Looking at data before a start: what the run will accept is accepted, and nothing is fetched."""

import dataclasses
import json

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.data import mapping_file, remote
from studio.data.common_beginnings import count_once
from studio.data.pipeline import validation_of
from studio.services.dataset_report import count_rows, measure
from studio.services.recipe_problems import find_problems, look
from tests.conftest import CHAT_TEMPLATE, chat_rows, make_model, write_jsonl
from tests.each_time import rarely
from tests.machine.facts import make_machine

SAY = load_catalogue("en").say


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_mapping_kept_in_the_workspace_counts(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", [{"one": f"q {i}", "two": f"a {i}"} for i in range(9)])
    spec, cache = DatasetSpec(source=str(path)), tmp_path / "cache"
    with pytest.raises(StudioError):
        look(spec, cache)
    place = mapping_file._list_places(str(path), cache)[-1]
    place.parent.mkdir(parents=True)
    saved = {"version": 1, "format": "prompt_completion", "mapping": {"prompt": "one", "completion": "two"}}
    place.write_text(json.dumps(saved), encoding="utf-8")
    assert look(spec, cache).format == "prompt_completion"


@pytest.mark.parametrize("fetched", [False, True])
def test_only_what_was_fetched_is_read(tmp_path, monkeypatch, fetched):
    monkeypatch.setattr(remote, "is_fetched", lambda spec, cache: fetched)
    asked = []

    def fetch(spec, cache, *_):
        asked.append(cache)
        raise remote.refuse("unfetched", spec.source)

    monkeypatch.setattr(remote, "fetch_remote", fetch)
    with pytest.raises(StudioError):
        look(DatasetSpec(source="owner/rows"), tmp_path)
    assert asked == [tmp_path] * fetched


def test_what_was_said_of_the_first_file_does_not_hold_for_validation(tmp_path):
    folder = tmp_path / "held_out"
    folder.mkdir()
    write(folder / "rows.jsonl", [{"prompt": "süß", "completion": "ja"}] * 3)
    spec = DatasetSpec(source="x", validation=str(folder), split="part", config="de", encoding="utf-16")
    assert look(validation_of(spec, "prompt_completion")).rows_read == 3


@pytest.mark.parametrize(("empty", "told"), [(55, "55 of 4,000 rows"), rarely(0, "")])
def test_few_broken_rows_anywhere_are_told_before_a_start(tmp_path, empty, told):
    rows = [
        {"prompt": f"question {i} " * 9, "completion": "" if i >= 4000 - empty else "yes"}
        for i in range(4000)
    ]
    spec = DatasetSpec(source=str(write(tmp_path / "a.jsonl", rows)))
    found = look(spec, tmp_path / "cache")
    assert (found.rows_read, found.rows_refused) == (4000, empty)
    assert [SAY(one)[: len(told)] for one in found.problems] == [told] * bool(empty)


@pytest.mark.computing
def test_many_broken_rows_behind_the_head_are_refused_before_a_start(tmp_path):
    rows = [{"prompt": f"question {i} " * 9, "completion": "" if i >= 3750 else "yes"} for i in range(4000)]
    spec = DatasetSpec(source=str(write(tmp_path / "a.jsonl", rows)))
    with pytest.raises(StudioError) as refusal:
        look(spec, tmp_path / "cache")
    assert SAY(refusal.value.what).startswith("250 of 4,000 rows cannot be used: 250 with an empty")
    assert "data.accept_bad_rows" in SAY(refusal.value.fix)
    accepted = look(dataclasses.replace(spec, accept_bad_rows=True), tmp_path / "cache")
    assert accepted.rows_refused == 250 and not accepted.problems


@pytest.mark.parametrize(
    ("own", "chosen", "found"),
    [
        (None, "", ("data.template", "error", ("phi3", "zephyr", "vicuna", "alpaca"))),
        (None, "phi3", None),
        (None, "vicuna", None),
        (None, "chatml", ("data.template", "warning", ())),
        (CHAT_TEMPLATE, "", None),
    ],
)
def test_conversations_for_a_base_model_come_with_templates(tmp_path, own, chosen, found):
    model = make_model(tmp_path / "base", template=own)
    spec = DatasetSpec(
        source=str(write_jsonl(tmp_path / "a.jsonl", chat_rows(24))), template=chosen, max_length=64
    )
    recipe = Recipe(model=ModelChoice(source=str(model)), data=spec)
    problems = find_problems(recipe, make_machine(), 2**40, tmp_path / "cache")
    about = [
        (one.field, one.severity, getattr(one, "choices", ()))
        for one in problems
        if one.field == "data.template"
    ]
    assert about == ([found] if found else [])
    plain = dataclasses.replace(recipe, objective="pretrain")
    assert not [one for one in find_problems(plain, make_machine(), 2**40) if one.field == "data.template"]


def test_rows_of_which_none_can_be_used_are_refused_whatever_was_accepted(tmp_path):
    rows = [{"prompt": f"question {i}", "completion": ""} for i in range(30)]
    spec = DatasetSpec(
        source=str(write(tmp_path / "a.jsonl", rows)), format="prompt_completion", accept_bad_rows=True
    )
    with pytest.raises(StudioError) as refusal:
        look(spec, tmp_path / "cache")
    assert SAY(refusal.value.what).startswith("30 of 30 rows cannot be used")


def count_demo(workspace, rows: list, **settings):
    """Return what a run of the demo's model makes of rows, and the problems of its recipe."""
    source = write_jsonl(workspace.root / "rows.jsonl", rows)
    data = DatasetSpec(source=str(source), **{"max_length": 512} | settings)
    recipe = Recipe(model=ModelChoice(source="demo"), data=data)
    measured = measure(
        change_recipe(recipe, {"data.max_length": 512}), workspace, lambda *_: None, lambda: False
    )
    counted = count_rows(measured, recipe.data)
    return measured, counted, find_problems(recipe, make_machine(), 2**40, workspace.data_cache, counted)


def test_the_prompts_of_pairs_are_counted_where_they_stand_again(workspace):
    rows = [
        {
            "prompt": f"Which is number {i}? " * (1 + i % 3),
            "chosen": f"It is {i}.",
            "rejected": f"It was {i}.",
        }
        for i in range(30)
    ]
    measured, counted, _ = count_demo(workspace, rows, format="preference")
    examples = measured.found.cutting.examples
    assert len(examples) == counted.rows_used == 30
    once = sum(count_once(one, 2) for one in examples)
    assert counted.repeated_tokens == counted.tokens - once > 0
    chats = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 30
    assert count_demo(workspace, chats)[1].repeated_tokens == 0


def test_rows_that_the_template_refuses_are_no_green_light(workspace):
    call = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Oslo"}}}
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Weather {i}?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "Rain", "name": "weather"},
                {"role": "assistant", "content": f"Rain {i}."},
            ],
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}],
        }
        for i in range(24)
    ]
    measured, counted, problems = count_demo(workspace, rows, accept_bad_rows=True)
    assert counted.refusal is not None and counted.rows_used == 0
    (error,) = [problem for problem in problems if problem.severity == "error"]
    assert error.field == "data.source" and "24" in SAY(error.message)
    asked = measured.report["needs_answer"][-1]
    assert asked["field"] == "data.template" and asked["choices"]
    _, counted, problems = count_demo(workspace, rows, template=asked["choices"][0])
    assert counted.refusal is None and counted.rows_used == 24, "the first choice leads somewhere"


def test_a_limit_that_cuts_much_away_is_told_with_what_it_costs(workspace):
    rows = [{"prompt": "Say it", "completion": f"Number {i}. " * (3 if i % 2 else 40)} for i in range(24)]
    assert not any(one.field == "data.max_length" for one in count_demo(workspace, rows)[2])
    _, counted, problems = count_demo(workspace, rows, max_length=64)
    (told,) = [one for one in problems if one.field == "data.max_length"]
    assert told.severity == "warning" and f"{counted.rows_cut} of {counted.rows_used} rows" in SAY(
        told.message
    )
    lengths = count_demo(workspace, rows)[0].lengths.full.tolist()
    assert counted.tokens == sum(min(64, length) for length in lengths)
