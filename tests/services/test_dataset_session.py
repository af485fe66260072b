"""The counter for data sets: a first look at once, the report behind it, no work for a source that has gone."""

from __future__ import annotations

import threading
import time

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import literal
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.services.dataset_session import Datasets, check_reach, identify
from tests.ui.sample_report import FakeTools, make_report

RECIPE = Recipe(model=ModelChoice(source="demo"), data=DatasetSpec(source="/data/chats.csv"))
PATIENCE_S = 10


class Gate:
    """Holds measure() until it is opened or called off."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def wait(self, should_stop) -> None:
        self.reached.set()
        while not (self.opened.wait(0.01) or should_stop()):
            pass


@pytest.fixture
def tools() -> FakeTools:
    """Tools whose report over all rows waits for `gate.opened`."""
    tools = FakeTools()
    tools.gate = Gate()
    return tools


@pytest.fixture
def datasets(workspace, tools):
    """The counter, closed at the end."""
    datasets = Datasets(workspace, tools)
    yield datasets
    tools.gate.opened.set()
    datasets.close()


def wait_for(datasets: Datasets, *states: str):
    """Return the look once it is in one of `states`."""
    until = time.monotonic() + PATIENCE_S
    while datasets.view().state not in states:
        assert time.monotonic() < until, datasets.view()
        time.sleep(0.005)
    return datasets.view()


def test_the_first_look_is_there_before_tokens_and_all_rows(datasets, tools):
    look = datasets.look(RECIPE)
    assert look.state in ("looking", "measuring") and look.report["format"] == "alpaca" and not look.whole
    assert all(not one["tokens"] for one in look.report["preview"]) or look.state == "measuring"
    look = wait_for(datasets, "measuring")
    assert look.report["preview"][0]["tokens"] and datasets.cuts == ()
    tools.gate.reached.wait(PATIENCE_S)
    assert datasets.view().share == 0.25 and datasets.view().number == look.number
    tools.gate.opened.set()
    look = wait_for(datasets, "done")
    assert look.whole and look.report["rows_read"] == 1200
    assert look.report["preview"][0]["tokens"], "the report over all rows keeps the examples of the head"
    assert datasets.cut_at(512).rows_cut == 488 and datasets.histogram["max"] == 1000


def test_what_is_known_is_not_asked_again(datasets, tools):
    datasets.look(RECIPE)
    tools.gate.opened.set()
    look = wait_for(datasets, "done")
    asked = list(tools.asked)
    for changes in (
        {"data.max_length": 64},
        {"data.packing": False},
        {"data.fill": True},
        {"data.accept_bad_rows": True},
    ):
        assert datasets.look(change_recipe(RECIPE, changes)) is look
    assert tools.asked == asked
    datasets.look(change_recipe(RECIPE, {"data.train_on": "everything"}))
    assert tools.asked[: len(asked) + 1] == [*asked, "head"]
    datasets.look(change_recipe(RECIPE, {"data.train_on": "everything"}), again=True)
    assert tools.asked.count("head") == 3


def test_another_source_ends_the_work_on_the_last_one(datasets, tools):
    datasets.look(RECIPE)
    wait_for(datasets, "measuring")
    tools.gate.reached.wait(PATIENCE_S)
    other = change_recipe(RECIPE, {"data.source": "/data/other.csv"})
    look = datasets.look(other)
    assert look.source == "/data/other.csv" and not look.whole
    tools.gate.opened.set()
    assert wait_for(datasets, "done").source == "/data/other.csv"
    assert tools.asked.count("measure") == 2


def test_stop_keeps_what_is_known_and_the_next_look_begins_anew(datasets, tools):
    datasets.look(RECIPE)
    wait_for(datasets, "measuring")
    look = datasets.cancel()
    assert look.state == "stopped" and look.report["format"] == "alpaca" and not look.working
    assert datasets.cancel() is look
    datasets.look(RECIPE)
    tools.gate.opened.set()
    assert wait_for(datasets, "done").whole


def test_a_question_is_not_measured(datasets, tools):
    tools.report = make_report(format=None, needs_answer=[{"question": literal("?"), "choices": ["a", "b"]}])
    datasets.look(RECIPE)
    assert not wait_for(datasets, "done").whole
    assert "measure" not in tools.asked


def test_what_cannot_be_read_is_said(datasets, tools):
    tools.error = StudioError(literal("what"), literal("why"), literal("fix"))
    look = datasets.look(RECIPE)
    assert look.state == "failed" and look.error is tools.error and not look.working


def test_what_nobody_foresaw_is_said_too(datasets, tools):
    def fail(should_stop):
        raise ValueError("odd")

    tools.gate.wait = fail
    datasets.look(RECIPE)
    look = wait_for(datasets, "failed")
    assert look.report["format"] == "alpaca" and "odd" in look.error.why.values["words"]
    tools.look_at_head = None
    with pytest.raises(TypeError):
        datasets.look(change_recipe(RECIPE, {"data.source": "/data/other.csv"}))
    assert datasets.view().state == "failed"


def test_nothing_is_fetched_before_the_word(datasets, tools):
    remote = change_recipe(RECIPE, {"data.source": "https://example.org/chats.jsonl"})
    assert datasets.look(remote).state == "remote"
    assert tools.asked == []
    assert datasets.ask_size().state == "asking", "the network may take seconds: nobody waits for it"
    assert wait_for(datasets, "remote").size_bytes == 5_000_000 and not tools.fetched
    tools.gate.opened.set()
    datasets.fetch()
    assert wait_for(datasets, "done").whole and tools.asked[:3] == ["size", "fetch", "head"]


def test_an_empty_source_is_no_data_set(datasets, tools):
    datasets.look(RECIPE)
    look = datasets.look(change_recipe(RECIPE, {"data.source": " "}))
    assert look.state == "none" and not look.report


def test_the_rows_set_aside_are_handed_out_as_a_copy(datasets, tools, tmp_path, workspace):
    tools.quarantine = tmp_path / "quarantine.jsonl"
    tools.quarantine.write_text('{"line": 5}\n', encoding="utf-8")
    tools.gate.opened.set()
    datasets.look(RECIPE)
    wait_for(datasets, "done")
    copy = datasets.quarantine()
    assert copy.read_text(encoding="utf-8") == '{"line": 5}\n' and copy.is_relative_to(workspace.root)
    tools.quarantine.write_text("", encoding="utf-8")
    assert datasets.quarantine() is None


def test_a_mapping_is_saved_only_where_there_is_one(datasets, tools):
    with pytest.raises(StudioError):
        datasets.save_mapping(RECIPE)
    datasets.look(RECIPE)
    assert datasets.save_mapping(RECIPE).name.startswith("chats.csv")


def test_a_path_is_for_the_owner_only():
    check_reach(True, "/etc/passwd")
    check_reach(False, "demo")
    with pytest.raises(StudioError):
        check_reach(False, "/etc/passwd")


def test_what_decides_the_tokens_decides_the_look():
    assert identify(RECIPE) != identify(change_recipe(RECIPE, {"model.source": "other"}))
    assert identify(RECIPE) != identify(change_recipe(RECIPE, {"data.mapping": {"output": "reply"}}))
    assert identify(RECIPE) == identify(change_recipe(RECIPE, {"data.max_length": 8, "optim.epochs": 9.0}))
