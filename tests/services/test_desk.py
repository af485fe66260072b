"""The desk on real runs of a tiny model: start, stop, resume, events for many readers, chat, export, the end."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import closing

import psutil
import pytest

from studio.core.errors import StudioError
from studio.core.events import RunFinished, RunStopped, StepLogged
from studio.core.heartbeat import Heartbeat
from studio.core.recipe import change_recipe
from studio.engine.checkpoint import newest_valid
from studio.machine.workspace_lock import Holder, claim
from studio.services.desk import Desk
from tests.launched import claimed_elsewhere


@pytest.fixture(scope="module")
def shop(tmp_path_factory, tiny_models, know_machine):
    """A workspace and a recipe of 12 steps that are used by all tests here."""
    from studio.services.recipes import read_recipe
    from tests.conftest import chat_rows, write_jsonl
    from tests.launched import write_recipe

    folder = tmp_path_factory.mktemp("desk")
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    recipe = read_recipe(str(write_recipe(folder, tiny_models(), data)))
    return know_machine(folder / "workspace"), recipe


@pytest.fixture
def desk(shop):
    """A desk, closed at the end."""
    desk = Desk(shop[0])
    yield desk
    desk.close()


@pytest.fixture
def other(shop):
    """A desk of another process in the same workspace, closed at the end."""
    other = Desk(shop[0])
    yield other
    other.close()


@pytest.fixture(scope="module")
def finished(shop):
    """The id of a run that went to its end."""
    desk = Desk(shop[0])
    run = desk.queue.start(shop[1])
    assert desk.runs.wait(run).state == "finished"
    desk.close()
    return run


@pytest.fixture
def endless(shop):
    """The recipe with more steps than anyone waits for."""
    return change_recipe(shop[1], {"optim.max_steps": 100_000, "run.save_every": 0})


def train_until(desk: Desk, run: str, step: int) -> None:
    """Wait for a step of a running run."""
    cursor, deadline = 0, 120
    while deadline:
        for event in desk.runs.events(run, cursor, wait_s=0.5):
            cursor = event.seq
            if isinstance(event, StepLogged) and event.step >= step:
                return
        assert desk.runs.active == run, desk.runs.read(run)
        deadline -= 1
    pytest.fail("the step never came")


@pytest.mark.computing
def test_two_readers_see_every_event_once(shop, desk):
    run = desk.queue.start(shop[1])
    seen: dict[str, list[int]] = {"quick": [], "slow": []}

    def read(name: str, wait_s: float) -> None:
        cursor = 0
        while True:
            active = desk.runs.active == run
            events = desk.runs.events(run, cursor, wait_s if active else 0.0)
            seen[name] += [event.seq for event in events]
            cursor = seen[name][-1] if seen[name] else 0
            if not active:
                return

    readers = [threading.Thread(target=read, args=each) for each in (("quick", 0.01), ("slow", 0.7))]
    for reader in readers:
        reader.start()
    record = desk.runs.wait(run)
    for reader in readers:
        reader.join(20)
    events = desk.runs.events(run)
    assert seen["quick"] == seen["slow"] == list(range(1, len(events) + 1))
    assert [event.step for event in events if isinstance(event, StepLogged)] == list(range(1, 13))
    assert isinstance(events[-1], RunFinished) and (record.state, record.steps) == ("finished", 12)
    assert desk.runs.active is None and [each.run for each in desk.runs.list()][0] == run
    # A later reader, and one of another process, see the same.
    assert Desk(shop[0]).runs.events(run) == events and desk.runs.events(run, len(events) - 1) == events[-1:]


def test_stop_saves_and_resume_goes_on(shop, desk):
    run = desk.queue.start(change_recipe(shop[1], {"optim.max_steps": 60, "run.save_every": 0}))
    train_until(desk, run, 3)
    desk.runs.stop(run)
    record = desk.runs.wait(run)
    assert record.state == "stopped" and 3 <= record.steps < 60 and not record.artifact
    last = desk.runs.events(run)[-1]
    assert isinstance(last, RunStopped) and last.saved and last.step == record.steps
    folder = shop[0].runs / run
    assert newest_valid(folder / "checkpoints", lambda *_: None).step == record.steps
    seen = len(desk.runs.events(run))
    desk.queue.resume(run)
    assert desk.runs.wait(run).state == "finished"
    later = [event.step for event in desk.runs.events(run, seen) if isinstance(event, StepLogged)]
    assert later == list(range(record.steps + 1, 61))
    with pytest.raises(StudioError) as refused:
        desk.queue.resume(run)
    assert refused.value.what.id == "run.finished_already"


def chat(desk, run: str, messages, **settings):
    """Yield the growing words of an answer."""
    with closing(desk.chat.answer(messages, run=run, **settings)) as answers:
        for answer in answers:
            yield answer.words


@pytest.mark.computing
def test_one_run_at_a_time_and_no_chat_meanwhile(shop, desk, other, endless, finished):
    run = desk.queue.start(endless)
    train_until(desk, run, 1)
    before = sorted(path.name for path in shop[0].runs.iterdir())
    for act in (
        lambda: desk.queue.start(shop[1]),
        lambda: desk.queue.resume(finished),
        lambda: other.queue.start(shop[1]),
        lambda: list(chat(desk, finished, [{"role": "user", "content": "hi"}])),
        lambda: desk.exports.write(finished, "adapter"),
    ):
        with pytest.raises(StudioError) as refused:
            act()
        assert run in refused.value.what.values.values() and refused.value.exit_code == 2
    assert sorted(path.name for path in shop[0].runs.iterdir()) == before
    assert isinstance(claim(shop[0], "run"), Holder)
    # Facts are to be had all the time.
    assert desk.recipes.check(shop[1]) == () and desk.runs.read(run).state == "running"
    desk.runs.stop(run)
    assert desk.runs.wait(run).state == "stopped"
    with claim(shop[0], "run") as held:
        assert not isinstance(held, Holder)


def test_no_model_is_loaded_beside_a_run_of_another_process(shop, desk, finished):
    """`launch.py train` in a terminal, and the window or `launch.py chat` beside it: one card, one model."""
    with claimed_elsewhere(shop[0], "busy-1"):
        assert desk.runs.active is None and not desk.chat.state().ok
        for act in (
            lambda: list(chat(desk, finished, [{"role": "user", "content": "hi"}])),
            lambda: desk.chat.begin_test(finished, print),
            lambda: desk.exports.write(finished, "adapter"),
            lambda: desk.exports.start(finished, "adapter"),
            lambda: desk.hand_over(7860),
            lambda: desk.queue.start(shop[1]),
        ):
            with pytest.raises(StudioError) as refused:
                act()
            assert refused.value.what.values["run"] == "busy-1"
    assert desk.chat.state().ok, "it was killed, and holds nothing any more"
    claim(shop[0], "run", run="mine").release()


def test_close_stops_with_a_checkpoint(shop, endless):
    desk = Desk(shop[0])
    run = desk.queue.start(endless)
    train_until(desk, run, 2)
    desk.close()
    assert desk.runs.active is None
    record = Desk(shop[0]).runs.read(run)
    assert record.state == "stopped" and record.steps >= 2
    assert newest_valid(shop[0].runs / run / "checkpoints", lambda *_: None).step == record.steps


def test_an_end_asked_for_before_the_start_is_kept(shop):
    desk = Desk(shop[0])
    desk.runs.stop_all()
    run = desk.queue.start(shop[1])
    record = desk.runs.wait(run)
    assert (record.state, record.steps) == ("stopped", 0)
    desk.close()


def test_base_and_tuned_answer_differently(desk, finished):
    question = [{"role": "user", "content": "say 3"}]
    answers = {}
    for side in ("base", "tuned"):
        growing = list(chat(desk, finished, question, side=side, max_new_tokens=12))
        assert all(later.startswith(earlier) for earlier, later in zip(growing, growing[1:], strict=False))
        answers[side] = growing[-1]
    assert answers["base"] != answers["tuned"]
    assert answers["tuned"] == list(chat(desk, finished, question, max_new_tokens=12))[-1]
    both = desk.chat.lend(
        finished, "", None, lambda speaker, _: speaker.answer_all([question] * 2, "tuned", max_new_tokens=12)
    )
    assert both[0] == both[1]


def test_an_answer_that_nobody_waits_for_ends(desk, finished):
    answer = chat(desk, finished, [{"role": "user", "content": "say 3"}], max_new_tokens=200)
    next(answer)
    answer.close()
    assert list(chat(desk, finished, [{"role": "user", "content": "say 4"}], max_new_tokens=1))


def test_export_is_staged(desk, finished, shop, tmp_path, monkeypatch):
    first = desk.exports.write(finished, "merged")
    again = desk.exports.write(finished, "merged")
    assert first == again and (first.path / "model.safetensors").is_file() and first.size_bytes > 0
    assert [path.name for path in shop[0].exports.iterdir()] == [f"{finished}-merged"]

    def run_out(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("studio.engine.exporters.adapter.shutil.copytree", run_out)
    with pytest.raises(OSError):
        desk.exports.write(finished, "adapter", tmp_path / "out" / "adapter")
    assert list((tmp_path / "out").iterdir()) == []


def test_check_returns_every_problem_and_loads_nothing(shop, desk):
    wrong = {
        "model.source": "/nowhere",
        "data.source": "/nothing.jsonl",
        "data.max_length": 0,
        "optim.epochs": -1,
    }
    problems = desk.recipes.check(change_recipe(shop[1], wrong))
    assert {problem.field for problem in problems} == wrong.keys()
    with pytest.raises(StudioError) as refused:
        desk.queue.start(change_recipe(shop[1], wrong))
    assert [each.message for each in refused.value.problems] == [each.message for each in problems]
    empty = desk.recipes.check(change_recipe(shop[1], {"model.source": "", "data.source": ""}))
    assert sorted(problem.field for problem in empty) == ["data.source", "model.source"]


def test_check_knows_the_datas_head(shop, desk, jsonl, tmp_path):
    from tests.conftest import chat_rows

    def fields(**changes: object) -> list[str]:
        return [problem.field for problem in desk.recipes.check(change_recipe(shop[1], changes))]

    text = str(jsonl(tmp_path / "text.jsonl", [{"text": f"line {i}"} for i in range(500)]))
    assert fields(**{"data.source": text}) == []
    assert fields(**{"data.source": text, "objective": "sft"}) == ["objective"]
    few = str(jsonl(tmp_path / "few.jsonl", chat_rows(10)))
    assert fields(**{"data.source": few, "data.validation_share": 0.01}) == ["data.validation_share"]
    # Of a longer file only the head is read, so nothing is said about its number of rows.
    many = str(jsonl(tmp_path / "many.jsonl", chat_rows(900)))
    assert fields(**{"data.source": many, "data.validation_share": 0.004}) == []
    assert fields(**{"data.validation": "/nothing.jsonl"}) == ["data.validation"]


def test_a_run_that_was_cut_off_shows_as_stopped(shop, desk, finished):
    folder = shop[0].runs / finished
    record = desk.runs.read(finished)
    folder_record = folder / "run.json"
    before = folder_record.read_text(encoding="utf-8")
    from studio.engine.run_folder import RunFolder

    RunFolder(folder).write_record(dataclasses.replace(record, state="running"))
    heart = Heartbeat(shop[0].heartbeat)
    try:
        assert desk.runs.read(finished).state == "stopped", "no sign of life"
        heart.beat(finished, folder, "train", 3)
        assert desk.runs.read(finished).state == "running", "this process gave it"
        beat = shop[0].heartbeat.read_text(encoding="utf-8")
        gone = max(psutil.pids()) + 1000
        shop[0].heartbeat.write_text(beat.replace(str(psutil.Process().pid), str(gone)), encoding="utf-8")
        assert desk.runs.read(finished).state == "stopped", "whoever gave it is gone"
        assert [each.state for each in desk.runs.list() if each.run == finished] == ["stopped"]
    finally:
        heart.clear()
        folder_record.write_text(before, encoding="utf-8")


def test_a_failure_that_cannot_be_written_down_is_told_all_the_same(shop, desk, monkeypatch):
    from studio.engine import run as engine

    def die(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(engine, "run", die)
    run = desk.queue.start(shop[1])
    record = desk.runs.wait(run)
    assert record.state == "failed" and record.diagnosis.id == "disk_full"
    assert desk.runs.read(run).state == "failed" and desk.runs.events(run)[-1].kind == "run_failed"
    assert desk.runs.active is None


def test_a_run_that_is_none(desk):
    for name in ("nobody", "../runs", "", "a/b"):
        for act in (desk.runs.read, desk.queue.resume, desk.runs.recipe, desk.runs.events):
            with pytest.raises(StudioError) as refused:
                act(name)
            assert refused.value.what.id == "run.unknown"
