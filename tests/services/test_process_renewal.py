"""When the window's process makes room for a new one: heavy, at rest, nobody there, and nothing that would be lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from studio.core.heartbeat import PARENT_VARIABLE
from studio.services.process_renewal import FIRST_S, LIGHT_BYTES, REST_S, TALK_REST_S, IdleRestart
from studio.services.worker import Worker


@pytest.fixture
def still(monkeypatch):
    """(desk, clock, renewal): a supervised process of 600 MB, older than FIRST_S, that has just been used."""
    monkeypatch.setenv(PARENT_VARIABLE, "1")
    desk = SimpleNamespace(
        working=lambda: "",
        is_busy=lambda: False,
        datasets=SimpleNamespace(view=lambda: SimpleNamespace(working=False)),
        sharing=SimpleNamespace(view=lambda: SimpleNamespace(on=False)),
        chat=SimpleNamespace(loaded=lambda: None, test=None, addressed=False),
    )
    clock = SimpleNamespace(s=0.0)
    renewal = IdleRestart(desk, lambda: clock.s, lambda: 600 * 2**20)
    clock.s = FIRST_S
    renewal.note_presence()
    return desk, clock, renewal


def test_a_heavy_process_that_nobody_uses_goes(still):
    _, clock, renewal = still
    assert not renewal.is_due()
    clock.s += REST_S + 1
    assert renewal.is_due()
    assert REST_S < 50, "a minute after a run the new one is there: it starts in 4 s"


def test_a_page_that_somebody_touches_keeps_it_and_one_that_lies_there_does_not(still):
    _, clock, renewal = still
    for _ in range(3):
        clock.s += REST_S - 1
        renewal.note_presence(5.0)
        assert not renewal.is_due()
    for _ in range(int(REST_S)):
        clock.s += 1
        renewal.note_presence(1e6)
    assert renewal.is_due()


@pytest.mark.parametrize("work", ["run", "export", "thread", "reading"])
def test_what_is_being_done_keeps_it_and_its_end_counts(still, work):
    desk, clock, renewal = still
    before = dict(vars(desk))
    busy = {
        "run": {"working": lambda: "run"},
        "export": {"working": lambda: "export"},
        "thread": {"is_busy": lambda: True},
        "reading": {"datasets": SimpleNamespace(view=lambda: SimpleNamespace(working=True))},
    }
    vars(desk).update(busy[work])
    clock.s += 10 * REST_S
    assert not renewal.is_due()
    vars(desk).update(before)
    clock.s += REST_S - 1
    assert not renewal.is_due()
    clock.s += 2
    assert renewal.is_due()


def test_a_loaded_model_waits_longer_and_answers_of_a_test_are_never_lost(still):
    desk, clock, renewal = still
    desk.chat.loaded = lambda: "model"
    clock.s += TALK_REST_S - 1
    assert not renewal.is_due()
    clock.s += 2
    assert renewal.is_due()
    desk.chat.test = object()
    assert not renewal.is_due()


def test_guests_a_light_process_and_one_without_supervisor_stay(still, monkeypatch):
    desk, clock, renewal = still
    clock.s += REST_S + 1
    assert not IdleRestart(desk, lambda: clock.s, lambda: LIGHT_BYTES).is_due()
    shared = SimpleNamespace(view=lambda: SimpleNamespace(on=True))
    monkeypatch.setattr(desk, "sharing", shared)
    assert not renewal.is_due()
    monkeypatch.undo()
    assert not renewal.is_due()


def test_a_process_that_has_just_begun_stays(still):
    desk, clock, _ = still
    renewal = IdleRestart(desk, lambda: clock.s, lambda: 600 * 2**20)
    clock.s += FIRST_S - 1
    assert not renewal.is_due()


def test_a_worker_is_busy_until_its_last_job_is_done():
    import threading

    worker, go = Worker("test"), threading.Event()
    assert not worker.busy
    first, second = worker.submit(go.wait), worker.submit(lambda: None)
    assert worker.busy
    go.set()
    first.result(), second.result()
    worker.close(5)
    assert not worker.busy
