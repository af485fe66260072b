"""Every second from the command to a run's first phase belongs to one named part."""

import pytest

from studio.core import start_clock


def test_the_parts_together_are_the_whole(monkeypatch):
    environment = {start_clock.VARIABLE: "command:100.000"}
    for name, now_s in (("supervisor", 100.3), ("child", 100.5), ("check", 102.0)):
        monkeypatch.setattr(start_clock.time, "time", lambda now_s=now_s: now_s)
        start_clock.mark(environment, name)
    parts_s = start_clock.split(environment, 109.0)
    assert list(parts_s) == ["start_command", "start_supervisor", "start_child", "start_check"]
    assert list(parts_s.values()) == pytest.approx([0.3, 0.2, 1.5, 7.0])
    assert sum(parts_s.values()) == pytest.approx(9.0)


def test_where_nobody_began_nothing_is_noted():
    environment = {}
    start_clock.mark(environment, "child")
    assert environment == {} and start_clock.split(environment, 1.0) == {}


def test_a_clock_of_another_make_counts_for_nothing():
    assert start_clock.split({start_clock.VARIABLE: "command:soon child:3"}, 9.0) == {}
