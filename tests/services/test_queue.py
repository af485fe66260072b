"""The queue: what runs next and when, without an engine: a runner of our own says when a run is on and how it ends."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from studio.core.codec import to_json
from studio.core.errors import Problem, StudioError
from studio.core.events import Diagnosis
from studio.core.i18n import literal
from studio.core.migrate import QUEUE_VERSION
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RunFolder, create_run
from studio.services.queue import ENDED_KEPT, WAITING_LIMIT, Queue, QueueItem, name_session

STORED = [
    file.parent for file in sorted((Path(__file__).parents[1] / "core" / "stored").glob("*/queue.json"))
]


def recipe(name: str, model: str = "demo") -> Recipe:
    """Return a recipe that is told from others by its name."""
    return Recipe(name=name, model=ModelChoice(source=model), data=DatasetSpec(source="demo"))


class Runner:
    """Stands for studio.services.runs.Runs: launches at once, ends when a test says so."""

    def __init__(self, workspace) -> None:
        self.workspace = workspace
        self.active: str | None = None
        self.closing = threading.Event()
        self.begun: list[str] = []
        self.refusal: Exception | None = None

    def launch(self, recipe: Recipe) -> str:
        if self.refusal:
            raise self.refusal
        assert self.active is None
        self.active = create_run(self.workspace.runs, recipe).run
        self.begun.append(recipe.name)
        return self.active

    def resume(self, run: str, *, paused: bool = False) -> None:
        self.active = run
        self.begun.append(run)


class Shop:
    """A queue over a Runner; jobs for the engine's thread are done at once, one after another."""

    def __init__(self, workspace, session: str = "first") -> None:
        self.problems: dict[str, str] = {}
        self.checked: list[str] = []
        self.runner = Runner(workspace)
        self._turn = threading.RLock()
        self.queue = Queue(workspace.queue, self.runner, self.check, self.do, session=session)

    def check(self, recipe: Recipe) -> tuple[Problem, ...]:
        self.checked.append(recipe.name)
        words = self.problems.get(recipe.name)
        fix = literal("fix it")
        return (Problem(field="data.source", message=literal(words), fix=fix),) if words else ()

    def do(self, job) -> None:
        with self._turn:
            job()

    def end(self, state: str = "finished", *, by_person: bool = False) -> None:
        """Let the run that is on end."""
        run, self.runner.active = self.runner.active, None
        diagnosis = (
            Diagnosis(id="x", what=literal("it broke"), why=literal("why")) if state == "failed" else None
        )
        folder = RunFolder(self.runner.workspace.runs / run)
        record = RunRecord(run=run, name=run, state=state, created_s=1.0, diagnosis=diagnosis)
        folder.write_record(record)
        self.queue.note_end(record, by_person=by_person)

    def states(self) -> list[tuple[str, str]]:
        return [(item.name, item.state) for item in self.queue.items()]


@pytest.fixture
def shop(workspace) -> Shop:
    """A queue in an empty workspace."""
    return Shop(workspace)


def test_items_run_one_after_another_by_themselves(shop):
    items = [shop.queue.add(recipe(name)) for name in "abc"]
    assert shop.states() == [("a", "running"), ("b", "waiting"), ("c", "waiting")]
    assert shop.queue.items()[0].run == shop.runner.active and isinstance(items[0], QueueItem)
    shop.end()
    assert shop.states() == [("b", "running"), ("c", "waiting"), ("a", "done")]
    shop.end()
    shop.end()
    assert shop.runner.begun == ["a", "b", "c"] and not shop.queue.held
    assert shop.states() == [("c", "done"), ("b", "done"), ("a", "done")]
    shop.queue.clear()
    assert shop.queue.items() == ()


def test_a_direct_start_is_an_item_and_goes_first(shop):
    shop.queue.hold(True)
    shop.queue.add(recipe("waits"))
    run = shop.queue.start(recipe("now"))
    assert shop.runner.active == run and shop.states() == [("now", "running"), ("waits", "waiting")]
    shop.end()
    assert shop.runner.active is None and shop.queue.held
    shop.queue.hold(False)
    assert shop.states() == [("waits", "running"), ("now", "done")]


def test_a_direct_start_is_refused_with_what_the_check_finds(shop):
    shop.problems["bad"] = "no data"
    with pytest.raises(StudioError) as refused:
        shop.queue.start(recipe("bad"))
    assert refused.value.problems[0].field == "data.source" and shop.queue.items() == ()
    assert shop.queue.start(recipe("bad"), checked=True)


def test_runs_of_one_recipe_are_told_apart_by_their_names(shop):
    run = shop.queue.start(recipe("try"))
    names = [shop.queue.add(recipe(name)).name for name in ("try", "try", "other", "")]
    names.append(shop.queue.add(recipe("")).name)
    assert names[:3] == ["try-2", "try-3", "other"] and len(set(names)) == 5
    shop.end()
    assert shop.runner.begun == ["try", "try-2"]
    folder = RunFolder(shop.runner.workspace.runs / shop.runner.active)
    assert folder.read_record().name == folder.read_recipe().name == "try-2"
    assert shop.queue.add(recipe("try")).name == "try", "one that has ended is no longer in the way"
    shop.queue.rename(run, "better")
    assert ("better", "done") in shop.states()
    for _ in range(4):
        shop.end()
    item = next(item for item in shop.queue.items() if item.run == shop.runner.active)
    assert item.name == item.run, "a run without a name goes by its id"


def test_order_can_be_changed(shop):
    shop.queue.hold(True)
    ids = {name: shop.queue.add(recipe(name)).id for name in "abcd"}
    shop.queue.move(ids["d"], -2)
    assert [name for name, _ in shop.states()] == ["a", "d", "b", "c"]
    shop.queue.move(ids["a"], 99)
    shop.queue.move(ids["d"], -99)
    assert [name for name, _ in shop.states()] == ["d", "b", "c", "a"]
    shop.queue.drop(ids["b"])
    shop.queue.hold(False)
    for act in (lambda: shop.queue.move(ids["d"], 1), lambda: shop.queue.drop(ids["d"])):
        with pytest.raises(StudioError) as refused:
            act()
        assert refused.value.what.id in ("queue.begun", "queue.runs")
    with pytest.raises(StudioError) as refused:
        shop.queue.drop(ids["b"])
    assert refused.value.what.id == "queue.unknown"
    shop.end()
    shop.end()
    shop.end()
    assert shop.runner.begun == ["d", "c", "a"]


def test_a_persons_stop_holds_what_waits(shop):
    for name in "abc":
        shop.queue.add(recipe(name))
    shop.end("stopped", by_person=True)
    assert shop.queue.held and shop.queue.reason.id == "queue.held.stopped"
    assert shop.states() == [("b", "waiting"), ("c", "waiting"), ("a", "stopped")]
    shop.queue.set_keep_going(True)
    assert shop.runner.active is None, "continuing on error is not going on after a stop"
    shop.queue.hold(False)
    assert shop.states()[0] == ("b", "running") and shop.queue.reason is None


def test_a_stop_with_nothing_waiting_holds_nothing(shop):
    shop.queue.start(recipe("a"))
    shop.end("stopped", by_person=True)
    assert not shop.queue.held
    shop.queue.add(recipe("b"))
    assert shop.states()[0] == ("b", "running")


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_failure_holds_unless_it_is_to_go_on(shop, keep_going):
    shop.queue.set_keep_going(keep_going)
    for name in "ab":
        shop.queue.add(recipe(name))
    shop.end("failed")
    failed = next(item for item in shop.queue.items() if item.name == "a")
    assert failed.state == "failed" and failed.problem == literal("it broke")
    assert shop.queue.held is not keep_going and shop.runner.begun == (["a", "b"] if keep_going else ["a"])
    if not keep_going:
        assert shop.queue.reason.id == "queue.held.failed"


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_recipe_is_checked_again_before_its_turn(shop, keep_going):
    shop.queue.set_keep_going(keep_going)
    for name in "abc":
        shop.queue.add(recipe(name))
    shop.problems["b"] = "the data is gone"
    shop.end()
    bad = next(item for item in shop.queue.items() if item.name == "b")
    assert (bad.state, bad.run, bad.problem) == ("failed", "", literal("the data is gone"))
    assert shop.checked == (["a", "b", "c"] if keep_going else ["a", "b"])
    assert shop.runner.begun == (["a", "c"] if keep_going else ["a"]) and shop.queue.held is not keep_going


def test_another_process_that_trains_holds_the_queue_and_a_full_disk_fails_the_item(shop):
    what = literal("another run is on")
    shop.runner.refusal = StudioError(what, literal("why"), literal("fix"))
    shop.queue.add(recipe("a"))
    assert shop.queue.reason == what and shop.states() == [("a", "waiting")]
    shop.runner.refusal = OSError(28, "No space left on device")
    shop.queue.hold(False)
    (item,) = shop.queue.items()
    assert item.state == "failed" and item.problem.id == "failure.disk_full"


def test_nothing_begins_while_the_studio_closes(shop):
    for name in "ab":
        shop.queue.add(recipe(name))
    shop.runner.closing.set()
    shop.end("stopped")
    assert shop.runner.begun == ["a"] and not shop.queue.held


def test_a_restart_by_the_supervisor_goes_on(workspace, shop):
    for name in "abc":
        shop.queue.add(recipe(name))
    run = shop.runner.active
    later = Shop(workspace)  # the first was killed: its item still says running
    later.queue.resume(run, paused=False)
    later.queue.wake()
    assert later.states() == [("a", "running"), ("b", "waiting"), ("c", "waiting")] and not later.queue.held
    later.end()
    assert later.states() == [("b", "running"), ("c", "waiting"), ("a", "done")]


def test_a_run_that_died_for_good_is_told_apart_by_its_record(workspace, shop):
    for name in "ab":
        shop.queue.add(recipe(name))
    folder = RunFolder(workspace.runs / shop.runner.active)
    diagnosis = Diagnosis(id="engine_died", what=literal("it died"), why=literal("why"))
    folder.write_record(
        RunRecord(run=folder.run, name="a", state="failed", created_s=1.0, diagnosis=diagnosis)
    )
    later = Shop(workspace)
    later.queue.wake()
    assert later.states() == [("b", "waiting"), ("a", "failed")]
    assert later.queue.reason.id == "queue.held.failed" and later.queue.items()[1].problem == literal(
        "it died"
    )


def test_a_new_start_waits_for_the_person(workspace, shop):
    for name in "ab":
        shop.queue.add(recipe(name))
    shop.queue.set_keep_going(True)
    shop.runner.closing.set()
    shop.end("stopped")
    later = Shop(workspace, session="second")
    later.queue.wake()
    assert later.runner.active is None and later.queue.reason.id == "queue.held.restarted"
    assert later.states() == [("b", "waiting"), ("a", "stopped")] and later.queue.keep_going
    later.queue.hold(False)
    assert later.states()[0] == ("b", "running")


def test_a_new_start_without_waiting_items_holds_nothing(workspace, shop):
    shop.queue.start(recipe("a"))
    later = Shop(workspace, session="second")
    later.queue.add(recipe("b"))
    assert later.states() == [("b", "running"), ("a", "stopped")] and not later.queue.held


def test_resuming_takes_the_item_of_the_run_or_makes_one(shop):
    run = shop.queue.start(recipe("a"))
    shop.end("stopped", by_person=True)
    shop.queue.resume(run)
    assert shop.states() == [("a", "running")]
    shop.end()
    shop.queue.clear()
    folder = RunFolder(shop.runner.workspace.runs / run)
    folder.write_record(replace(folder.read_record(), name="better"))
    shop.queue.resume(run)
    assert shop.states() == [("better", "running")], "a run that was renamed goes by the name that it has now"
    assert shop.queue.items()[0].run == run


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '"x"', '{"version": 99}', '{"version": 1, "items": [{"id": 1}]}', "[" * 100_000],
)
def test_a_damaged_file_is_kept_aside(workspace, content):
    workspace.queue.write_text(content, encoding="utf-8")
    shop = Shop(workspace)
    assert shop.queue.items() == () and not shop.queue.held
    assert shop.queue.notice.id == "queue.broken"
    aside = workspace.root / "queue.json.broken"
    assert aside.read_text(encoding="utf-8") == content and not workspace.queue.exists()
    shop.queue.add(recipe("a"))
    assert json.loads(workspace.queue.read_text(encoding="utf-8"))["items"][0]["name"] == "a"


def test_what_cannot_be_written_is_told_and_goes_on(workspace, shop, monkeypatch):
    def run_out(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("studio.services.queue.write_json", run_out)
    for name in "ab":
        shop.queue.add(recipe(name))
    assert shop.queue.notice.id == "queue.unwritten"
    shop.end()
    assert shop.states() == [("b", "running"), ("a", "done")]
    monkeypatch.undo()
    shop.end()
    assert shop.queue.notice is None
    assert [item["state"] for item in json.loads(workspace.queue.read_text(encoding="utf-8"))["items"]] == [
        "done",
        "done",
    ]


def test_it_stays_small(shop, monkeypatch):
    assert (ENDED_KEPT, WAITING_LIMIT) == (50, 200)
    monkeypatch.setattr("studio.services.queue.ENDED_KEPT", 3)
    monkeypatch.setattr("studio.services.queue.WAITING_LIMIT", 4)
    for i in range(5):
        shop.queue.start(recipe(f"r{i}"), checked=True)
        shop.end()
    assert [item.name for item in shop.queue.items()] == ["r4", "r3", "r2"]
    shop.queue.hold(True)
    for _ in range(4):
        shop.queue.add(recipe("w"))
    with pytest.raises(StudioError) as refused:
        shop.queue.add(recipe("w"))
    assert refused.value.what.id == "queue.full"


def test_a_deleted_runs_item_goes_and_a_discarded_ones_has_no_run(shop):
    first = shop.queue.start(recipe("a"))
    shop.end()
    shop.queue.forget(first)
    assert shop.queue.items() == ()
    second = shop.queue.start(recipe("b"))
    shop.runner.active = None
    shutil.rmtree(shop.runner.workspace.runs / second)
    record = RunRecord(run=second, name="b", state="stopped", created_s=1.0)
    shop.queue.note_end(record, by_person=True)
    assert [(item.state, item.run) for item in shop.queue.items()] == [("stopped", "")]


def test_a_command_that_looks_touches_nothing(workspace):
    from studio.services.desk import Desk

    workspace.queue.write_text("{", encoding="utf-8")
    desk = Desk(workspace)
    assert desk.runs.list() == () and desk.library.entries() == () and desk.runs.active is None
    assert workspace.queue.read_text(encoding="utf-8") == "{"
    Desk(workspace, keep_queue=False).queue.set_keep_going(True)
    assert workspace.queue.read_text(encoding="utf-8") == "{"


def test_a_session_is_the_supervisors(monkeypatch):
    import os

    own = name_session()
    assert own == name_session() and own.startswith(f"{os.getpid()}-")
    monkeypatch.setenv("FINETUNE_STUDIO_PARENT", str(os.getppid()))
    assert name_session().startswith(f"{os.getppid()}-")
    monkeypatch.setenv("FINETUNE_STUDIO_PARENT", "99999999")
    assert name_session() != name_session(), "a supervisor that is gone vouches for nothing"


def test_the_file_says_everything(workspace, shop):
    shop.queue.add(recipe("a"))
    data = json.loads(workspace.queue.read_text(encoding="utf-8"))
    assert data["version"] == QUEUE_VERSION and data["session"] == "first"
    assert data["items"][0]["recipe"] == to_json(recipe("a"))


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_a_queue_of_every_version_reads(workspace, folder):
    workspace.queue.write_bytes((folder / "queue.json").read_bytes())
    queue = Shop(workspace).queue
    assert [(item.name, item.state) for item in queue.items()] == [
        ("c", "waiting"),
        ("b", "failed"),
        ("a", "done"),
    ]
    assert queue.keep_going and queue.reason.id == "queue.held.failed" and queue.notice is None
    assert queue.items()[0].recipe.name == "stored 版本1" and len(STORED) == QUEUE_VERSION
