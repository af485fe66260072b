"""A paused run gives signs of life all the while: no watchdog takes it for stalled, and it hears a stop."""

from __future__ import annotations

import json
import random
import threading
import time

import numpy as np
import torch

from studio.core.events import RunPaused, RunUnpaused
from studio.core.heartbeat import Heartbeat
from studio.core.recipe import RunSpec
from studio.core.stall_timeout import BUDGETS_VARIABLE
from studio.engine.pause import stand_still
from studio.engine.rng_state import seed_all
from studio.engine.run_folder import RunFolder
from studio.engine.trainer_hooks import Hooks
from studio.engine.watchdog import Watch


def make_hooks(events: list, beat, paused: threading.Event, stopped: threading.Event) -> Hooks:
    """Return hooks that ask the two events."""
    return Hooks(
        emit=events.append,
        should_stop=stopped.is_set,
        save=lambda state: 0,
        beat=beat,
        should_pause=paused.is_set,
    )


def test_a_pause_longer_than_any_limit_is_no_stall(tmp_path):
    events, paused = [], threading.Event()
    paused.set()
    budgets = json.dumps({"floor": 0.6, "first": 0.6, "check": 0.05})
    heart = Heartbeat(tmp_path / "heartbeat.json")
    watch = Watch(
        RunFolder(tmp_path), RunSpec(), events.append, heart, environment={BUDGETS_VARIABLE: budgets}
    )
    threading.Timer(1.6, paused.clear).start()
    begun_s = time.monotonic()
    with watch:
        watch.beat("train", 7, 0)
        watch.beat("train", 8, 0)
        stand_still(make_hooks(events, watch.beat, paused, threading.Event()), 7)
    assert time.monotonic() - begun_s >= 1.5
    assert events == [RunPaused(step=7), RunUnpaused(step=7)]


def test_a_stop_is_heard(tmp_path):
    events, beats, paused, stopped = [], [], threading.Event(), threading.Event()
    paused.set()

    def beat(*place: object) -> None:
        beats.append(place)
        if len(beats) == 3:
            stopped.set()

    stand_still(make_hooks(events, beat, paused, stopped), 4)
    assert events == [RunPaused(step=4)] and beats == [("pause", 4, 0), ("pause", 4, 1), ("pause", 4, 2)]


def test_what_is_drawn_meanwhile_changes_nothing_of_the_run():
    paused = threading.Event()
    paused.set()

    def beat(*place: object) -> None:
        torch.rand(7)
        np.random.rand(7)
        random.random()
        paused.clear()

    seed_all(3)
    wanted = torch.rand(3), np.random.rand(3).tolist(), random.random()
    seed_all(3)
    stand_still(make_hooks([], beat, paused, threading.Event()), 4)
    found = torch.rand(3), np.random.rand(3).tolist(), random.random()
    assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:]
