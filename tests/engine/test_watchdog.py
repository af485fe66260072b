"""The judge inside the process, looked through step by step with clocks of our own."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import pytest

from studio.core.codec import event_from_json, to_json
from studio.core.events import PhaseStarted, RunStalled, StallEnded, StepLogged, Warned
from studio.core.heartbeat import Heartbeat, read_stall
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.core.recipe import RunSpec
from studio.core.stall_timeout import BUDGETS_VARIABLE
from studio.engine import watchdog as module
from studio.engine.run_folder import RunFolder
from studio.engine.watchdog import Watch

WINDOW = {"FINETUNE_STUDIO_PARENT": "7"}
HEADLESS = WINDOW | {"FINETUNE_STUDIO_UNATTENDED": "1"}
BUDGETS = {BUDGETS_VARIABLE: json.dumps({"check": 0.02})}


class Stage:
    """A Watch whose time stands still until told; `events` is what it emitted."""

    def __init__(self, folder, on_stall="auto", environment=WINDOW, asked=False) -> None:
        folder.mkdir()
        self.now_s, self.wall_s, self.asked = 100.0, 5000.0, asked
        self.events: list = []
        self.watch = Watch(
            RunFolder(folder),
            RunSpec(on_stall=on_stall, keep_awake=False),
            self.events.append,
            Heartbeat(folder.parent / "heartbeat.json"),
            should_stop=lambda: self.asked,
            environment=environment,
            clock=lambda: self.now_s,
            wall=lambda: self.wall_s,
        )
        self.heartbeat = folder.parent / "heartbeat.json"

    def go(self, seconds: float, slept_s: float = 0.0) -> list:
        """Let time pass with a look each second; returns the events of that time."""
        before = len(self.events)
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.wall_s += 1.0
            self.watch.look()
        self.wall_s += slept_s
        if slept_s:
            self.watch.look()
        return self.events[before:]

    def train(self, steps: int = 10) -> None:
        for step in range(1, steps + 1):
            self.watch.beat("train", step)
            self.now_s += 0.5
            self.wall_s += 0.5

    @property
    def wish(self) -> str | None:
        told = read_stall(self.heartbeat, 1e6)
        return told.wish if told else None


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A function that makes a Stage; nothing of this machine is measured."""
    monkeypatch.setattr(
        module, "read_vitals", lambda pid, cache, gpu: {"time_s": 0.0, "ram_total_bytes": 8.0}
    )
    return lambda **given: Stage(tmp_path / "run", **given)


def test_a_run_on_its_way_says_nothing(stage):
    it = stage()
    it.train()
    assert it.go(59) == [] and it.wish is None
    it.train()
    assert it.go(59) == []


def test_a_standstill_is_told_once_within_three_looks(stage):
    it = stage()
    it.train()
    (stall,) = it.go(64)
    assert isinstance(stall, RunStalled) and stall.action == "ask"
    assert (stall.phase, stall.step, stall.verdict) == ("train", 10, "blocked")
    assert 60 < stall.waited_s <= 63 and stall.measures["ram_total_bytes"] == 8.0
    assert it.go(100) == [] and it.wish == ""
    assert event_from_json(json.loads(json.dumps(to_json(stall)))) == stall
    for language in LANGUAGES:
        assert "stall." not in load_catalogue(language).say(stall.message)


def test_it_goes_on_by_itself(stage):
    it = stage()
    it.train()
    it.go(64)
    it.watch.beat("train", 11)
    (ended,) = it.go(1)
    assert isinstance(ended, StallEnded) and 63 <= ended.waited_s <= 66 and it.wish is None
    assert [type(event) for event in it.go(64)] == [RunStalled]  # and is watched again


def test_without_an_answer_it_restarts_after_five_minutes(stage):
    it = stage()
    it.train()
    it.go(64)
    assert it.go(290) == []
    (stall,) = it.go(15)
    assert stall.action == "restart" and it.wish == "restart"
    assert not read_stall(it.heartbeat, 1e6).person


@pytest.mark.parametrize("choice", ["restart", "stop"])
def test_a_persons_choice_becomes_the_supervisors(stage, choice):
    it = stage()
    it.train()
    assert not it.watch.answer(choice)  # nothing stands still
    it.go(64)
    assert it.watch.answer(choice)
    (stall,) = it.go(1)
    assert (stall.action, it.wish) == (choice, choice) and read_stall(it.heartbeat, 1e6).person
    with pytest.raises(ValueError, match="sing"):
        it.watch.answer("sing")


def test_a_persons_wait_is_respected_and_asked_again_later(stage):
    it = stage()
    it.train()
    it.go(64)
    assert it.watch.answer("wait")
    (stall,) = it.go(1)
    assert (stall.action, it.wish) == ("wait", "")
    assert it.go(55) == []
    again = it.go(80)
    assert [event.action for event in again] == ["ask"] and it.wish == ""


@pytest.mark.parametrize(
    ("given", "action"),
    [
        ({"environment": HEADLESS}, "restart"),
        ({"environment": HEADLESS, "on_stall": "stop"}, "stop"),
        ({"environment": HEADLESS, "on_stall": "wait"}, "wait"),
        ({"environment": {}}, "wait"),
        ({"environment": {}, "on_stall": "restart"}, "wait"),
        ({"on_stall": "restart"}, "restart"),
        ({"asked": True}, "stop"),  # asked to end, and deaf
    ],
)
def test_what_follows(stage, given, action):
    it = stage(**given)
    it.train()
    assert it.go(64)[-1].action == action
    expected = action if action in ("restart", "stop") else ""
    assert it.wish == (expected if given.get("environment", WINDOW) else None)


def test_a_sleep_is_no_stall(stage):
    it = stage()
    it.train()
    it.go(50)
    (slept,) = it.go(0, slept_s=7200)
    assert isinstance(slept, Warned) and slept.message.values == {"minutes": "120"}
    assert it.go(59) == []
    it.go(5)
    ended = it.go(0, slept_s=600)
    assert [type(event) for event in ended] == [Warned, StallEnded]


def test_a_compiler_at_work_has_ten_minutes(stage, monkeypatch):
    monkeypatch.setattr(module, "read_vitals", lambda *_: {"time_s": 0.0, "compilers": 1.0})
    it = stage()
    it.train()
    assert it.go(590) == [] and it.wish == ""
    assert [event.verdict for event in it.go(40)] == ["compiling"]


def test_a_download_that_moves_is_alive(stage):
    it = stage()
    it.watch.emit(PhaseStarted(phase="download"))
    it.go(500)
    it.watch.emit(PhaseStarted(phase="download"))
    assert [event for event in it.go(500) if isinstance(event, RunStalled)] == []


def logged(step: int, vram_bytes: int) -> StepLogged:
    return StepLogged(
        step=step,
        total_steps=99,
        epoch=0.0,
        loss=1.0,
        lr=0.1,
        grad_norm=1.0,
        tokens_per_s=1.0,
        vram_bytes=vram_bytes,
    )


def test_memory_that_grows_step_by_step_is_told_once(stage):
    it = stage()
    for step in range(1, 121):
        it.watch.emit(logged(step, 4 * 2**30 + step * 8 * 2**20))
    (warned,) = (event for event in it.events if isinstance(event, Warned))
    assert (
        warned.step == 50 and warned.message.id == "stall.grows.vram" and warned.message.values["mib"] == 320
    )
    assert "320" in load_catalogue("zh-CN").say(warned.message)


def test_memory_that_swings_or_stays_is_not_told(stage):
    it = stage()
    for step in range(1, 121):
        it.watch.emit(logged(step, 4 * 2**30 + step % 7 * 200 * 2**20))
    assert not [event for event in it.events if isinstance(event, Warned)]


def test_a_blocked_thread_is_named_with_its_stacks_in_the_folder(tmp_path):
    """With real clocks: a thread that beats and then waits for ever, as an engine does."""
    told = threading.Event()
    events: list = []

    def emit(event) -> None:
        events.append(event)
        told.set()

    folder = tmp_path / "run"
    folder.mkdir()
    budgets = json.dumps({"floor": 0.3, "first": 0.3, "check": 0.05})
    watch = Watch(
        RunFolder(folder),
        RunSpec(keep_awake=False),
        emit,
        Heartbeat(tmp_path / "heartbeat.json"),
        environment={BUDGETS_VARIABLE: budgets},
    )
    release = threading.Event()

    def wait_for_ever() -> None:
        watch.beat("train", 3, 1)
        release.wait(20)

    with watch:
        engine = threading.Thread(target=wait_for_ever)
        engine.start()
        assert told.wait(10)
        release.set()
        engine.join()
    (stall,) = events
    assert stall.frame.startswith("test_watchdog.py:") and stall.frame.endswith("in wait_for_ever")
    stacks = (folder / "stacks.txt").read_text(encoding="utf-8")
    assert "in wait_for_ever" in stacks and stacks.startswith("=== ")


def test_the_file_of_stacks_does_not_grow_without_end(stage, monkeypatch):
    monkeypatch.setattr(module, "STACKS_LIMIT_BYTES", 10_000)
    it = stage(on_stall="wait", environment={})
    path = it.watch.folder.path / "stacks.txt"
    path.write_text("old\n" * 5000, encoding="utf-8")
    with it.watch:
        assert path.stat().st_size == 0
        it.watch._dump_stacks()
        once = path.stat().st_size  # as deep as the stacks of all threads that this process has just now
        for _ in range(20):
            it.watch._dump_stacks()
        words = path.read_text(encoding="utf-8")
    assert 0 < len(words) < 10_000 + 2 * once and words.startswith("=== ") and "call first" in words


def test_a_calm_run_leaves_no_file_behind_and_costs_little(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    watch = Watch(
        RunFolder(folder),
        RunSpec(keep_awake=False),
        lambda event: None,
        SimpleNamespace(beat=lambda *_: None, path=tmp_path / "heartbeat.json"),
        environment=BUDGETS,
    )
    with watch:
        watch.beat("start", 0)
        started_s = time.perf_counter()
        for step in range(2000):
            watch.beat("train", step)
        cost_s = (time.perf_counter() - started_s) / 2000
    assert list(folder.iterdir()) == []
    assert cost_s < 50e-6  # 1 % of a step of 5 ms
