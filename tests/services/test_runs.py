"""Real runs of a tiny model that are paused, discarded, renamed, and follow one another out of the queue."""

from __future__ import annotations

import threading
import time

import pytest

from studio.core.errors import StudioError
from studio.core.events import CheckpointSaved, RunPaused, RunUnpaused, StepLogged
from studio.core.heartbeat import read_beat
from studio.core.recipe import change_recipe
from studio.services.desk import Desk
from tests.services.test_desk import desk, endless, shop, train_until  # noqa: F401 - fixtures


def wait_until(condition, limit_s: float = 60.0) -> None:
    """Wait until `condition()` holds; fails after `limit_s`."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def kinds(desk: Desk, run: str) -> list[str]:  # noqa: F811
    """The kinds of a run's pauses."""
    return [event.kind for event in desk.runs.events(run) if isinstance(event, (RunPaused, RunUnpaused))]


def losses(desk: Desk, run: str) -> list[float]:  # noqa: F811
    """The losses of a run's steps."""
    return [event.loss for event in desk.runs.events(run) if isinstance(event, StepLogged)]


@pytest.mark.computing
def test_a_paused_run_stands_still_alive_and_goes_on_as_if_nothing_was(shop, desk):  # noqa: F811
    recipe = change_recipe(shop[1], {"optim.max_steps": 30, "run.save_every": 0, "run.trial": False})
    calm = desk.queue.start(recipe)
    assert desk.runs.wait(calm).state == "finished"
    run = desk.queue.start(recipe)
    train_until(desk, run, 2)
    desk.runs.pause(run)
    wait_until(lambda: kinds(desk, run))
    step = desk.runs.events(run)[-1].step
    assert desk.runs.paused and isinstance(desk.runs.events(run)[-2], CheckpointSaved)
    wait_until(lambda: read_beat(shop[0].heartbeat).phase == "pause")  # the event comes before the first beat
    beat = read_beat(shop[0].heartbeat)
    assert (beat.run, beat.step) == (run, step)
    wait_until(lambda: read_beat(shop[0].heartbeat).micro > beat.micro + 1)
    assert desk.runs.events(run)[-1].step == step, "no step meanwhile"
    desk.runs.unpause(run)
    assert desk.runs.wait(run).state == "finished" and not desk.runs.paused
    assert kinds(desk, run) == ["run_paused", "run_unpaused"]
    assert losses(desk, run) == losses(desk, calm)


@pytest.mark.computing
def test_a_paused_run_can_be_stopped_and_is_resumed_running(shop, desk, endless):  # noqa: F811
    run = desk.queue.start(endless)
    desk.runs.pause(run)  # before its first step
    wait_until(lambda: kinds(desk, run))
    assert losses(desk, run) == []
    assert (
        desk.runs.read(run).state
        == desk.runs.list()[0].state
        == desk.library.entries()[0].record.state
        == "paused"
    )
    assert not desk.library.entries()[0].resumable.ok
    desk.runs.stop(run)
    assert desk.runs.wait(run).state == "stopped" and kinds(desk, run) == ["run_paused"]
    assert desk.runs.read(run).state == "stopped"
    desk.queue.resume(run)
    train_until(desk, run, 2)
    record = desk.library.entries()[0].record
    assert record.state == "running" and record.steps >= 2 and record.loss and record.total_steps
    desk.runs.stop(run)
    assert desk.runs.wait(run).steps >= 2
    desk.runs.pause(run)
    assert not desk.runs.paused, "nothing is on"


@pytest.mark.computing
def test_a_restart_leaves_a_paused_run_paused(shop, endless):  # noqa: F811
    first = Desk(shop[0])
    run = first.queue.start(endless)
    train_until(first, run, 1)
    first.runs.pause(run)
    wait_until(lambda: kinds(first, run))
    first.close()  # as before a restart that was asked for
    second = Desk(shop[0])
    second.reopen(resumed=run)
    wait_until(lambda: kinds(second, run) == ["run_paused", "run_paused"])
    paused = len(losses(second, run))
    assert second.runs.active == run and second.runs.paused
    second.runs.unpause(run)
    train_until(second, run, paused + 1)
    second.close()
    third = Desk(shop[0])
    assert not third.runs.was_paused(run), "it went on before it ended"
    third.close()


def test_a_discarded_run_leaves_nothing_behind(shop, desk, endless):  # noqa: F811
    before = sorted(path.name for path in shop[0].runs.iterdir())
    run = desk.queue.start(endless)
    train_until(desk, run, 2)
    desk.runs.discard(run)
    record = desk.runs.wait(run)
    assert record.state == "stopped" and desk.runs.active is None
    assert sorted(path.name for path in shop[0].runs.iterdir()) == before
    item = desk.queue.items()[0]
    assert (item.state, item.run) == ("stopped", "") and not shop[0].heartbeat.exists()
    for act in (desk.runs.read, desk.runs.events, desk.runs.discard):
        with pytest.raises(StudioError) as refused:
            act(run)
        assert refused.value.what.id in ("run.unknown", "run.discard")


def test_no_checkpoint_is_written_for_a_run_that_is_discarded(shop, desk, endless, monkeypatch):  # noqa: F811
    saved = []
    monkeypatch.setattr(
        "studio.engine.phases.load.save_checkpoint", lambda *args: saved.append(args) or (None, 0)
    )
    run = desk.queue.start(endless)
    desk.runs.pause(run)
    wait_until(lambda: kinds(desk, run))
    desk.runs.discard(run)  # while it is paused
    desk.runs.wait(run)
    assert saved == []


@pytest.mark.computing
def test_only_the_run_that_is_on_is_discarded(shop, desk):  # noqa: F811
    run = desk.queue.start(shop[1])
    assert desk.runs.wait(run).state == "finished"
    with pytest.raises(StudioError) as refused:
        desk.runs.discard(run)
    assert refused.value.what.id == "run.discard" and desk.runs.read(run).state == "finished"


def test_a_run_that_is_renamed_while_it_runs_keeps_the_name(shop, desk, endless):  # noqa: F811
    run = desk.queue.start(endless)
    train_until(desk, run, 1)
    desk.library.rename(run, "better")
    desk.runs.stop(run)
    assert desk.runs.wait(run).name == "better" == desk.runs.read(run).name
    with pytest.raises(StudioError):
        desk.library.rename("nobody", "x")


def test_the_run_that_is_on_is_listed_and_not_deleted(shop, desk, endless):  # noqa: F811
    run = desk.queue.start(endless)
    train_until(desk, run, 3)
    entry = desk.library.entries()[0]
    assert entry.record.run == run and len(entry.spark) >= 3
    assert not entry.resumable.ok and entry.resumable.reason.id == "shelf.resume.running"
    with pytest.raises(StudioError) as refused:
        desk.library.delete(run)
    assert refused.value.what.id == "shelf.active"
    desk.runs.stop(run)
    desk.runs.wait(run)
    entry = desk.library.entries()[0]
    assert entry.resumable.ok and entry.resumable.reason.id == "shelf.resume.from"
    assert desk.library.delete(run) > 0 and all(each.record.run != run for each in desk.library.entries())


def test_a_run_whose_folder_is_taken_away_says_so(shop, desk, endless):  # noqa: F811
    run = desk.queue.start(endless)
    train_until(desk, run, 1)
    (shop[0].runs / run).rename(shop[0].root / f"gone-{run}")
    assert desk.runs.wait(run).diagnosis.id == "run_folder_gone"
    shown = desk.runs.read(run)
    assert shown.state == "failed" and shown.steps >= 1, (
        "the page that shows it tells of it, as long as it can"
    )
    assert [fix.title.id for fix in shown.diagnosis.fixes] == ["failure.fix.leave_folder"]
    assert run not in [record.run for record in desk.runs.list()]
    item = next(item for item in desk.queue.items() if item.state == "failed")
    assert item.problem.id == "failure.run_folder_gone"
    desk.queue.drop(item.id)


@pytest.mark.computing
def test_a_run_whose_folder_is_taken_away_ends_and_the_queue_goes_on(shop, desk, endless):  # noqa: F811
    desk.queue.set_keep_going(True)
    desk.queue.clear()
    run = desk.queue.start(endless)
    desk.queue.add(change_recipe(shop[1], {"optim.max_steps": 1, "run.trial": False}))
    train_until(desk, run, 2)
    (shop[0].runs / run).rename(shop[0].root / f"gone-{run}")
    wait_until(lambda: {item.state for item in desk.queue.items()} == {"failed", "done"})
    assert next(item for item in desk.queue.items() if item.state == "failed").run == ""


@pytest.mark.computing
def test_the_queue_runs_by_itself_and_a_stop_holds_it(shop, desk, endless):  # noqa: F811
    short = change_recipe(shop[1], {"optim.max_steps": 2, "name": "short", "run.trial": False})
    gone = change_recipe(shop[1], {"data.source": str(shop[0].root / "gone.jsonl"), "name": "gone"})
    desk.queue.set_keep_going(True)
    desk.queue.clear()
    for each in (short, gone, short, change_recipe(endless, {"name": "long"}), short):
        desk.queue.add(each)
    wait_until(lambda: desk.queue.items()[0].name == "long" and desk.queue.items()[0].state == "running")
    run = desk.queue.items()[0].run
    train_until(desk, run, 1)
    desk.runs.stop(run)
    desk.runs.wait(run)
    states = [(item.name, item.state) for item in desk.queue.items()]
    assert states == [
        ("short-3", "waiting"),
        ("long", "stopped"),
        ("short-2", "done"),
        ("gone", "failed"),
        ("short", "done"),
    ]
    assert desk.queue.reason.id == "queue.held.stopped" and desk.runs.active is None
    assert next(item for item in desk.queue.items() if item.name == "gone").problem is not None
    desk.queue.hold(False)
    wait_until(lambda: desk.queue.items()[0].state == "done")
    desk.queue.set_keep_going(False)


@pytest.mark.computing
def test_a_direct_start_and_the_queue_never_run_two(shop, desk):  # noqa: F811
    short = change_recipe(shop[1], {"optim.max_steps": 1, "run.trial": False})
    refused = []

    def start() -> None:
        try:
            desk.queue.start(short, checked=True)
        except StudioError as error:
            refused.append(error.what.id)

    for _ in range(3):
        desk.queue.add(short)
    starters = [threading.Thread(target=start) for _ in range(3)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    wait_until(lambda: not any(item.state in ("waiting", "running") for item in desk.queue.items()))
    wait_until(lambda: desk.runs.active is None)
    assert set(refused) <= {"desk.busy"}
    assert all(item.state == "done" for item in desk.queue.items()[: 6 - len(refused)])


@pytest.mark.computing
def test_a_run_teaches_the_next_one_its_speed(shop, desk):  # noqa: F811
    recipe = change_recipe(shop[1], {"optim.max_steps": 6, "run.trial": False})
    run = desk.queue.start(recipe)
    assert desk.runs.wait(run).state == "finished"
    (one,) = desk.machine.add_experience(desk.machine.now(), recipe).speeds
    told = sorted(event.tokens_per_s for event in desk.runs.events(run) if isinstance(event, StepLogged))
    assert one.run == run and one.path == "stock" and told[0] <= one.tokens_per_s <= told[-1]
    assert desk.recipes.plan(recipe).slower == () and one.reckoned_tokens_per_s > 0
