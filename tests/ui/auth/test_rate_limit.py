"""How often one caller may ask, and whose a session is."""

from __future__ import annotations

from studio.ui.auth.rate_limit import ALLOWANCES, Allowance, RateLimits, Sessions


def test_sessions_are_given_up_oldest_first_and_nobody_crowds_out_another():
    sessions = Sessions()
    assert sessions.claim("mine", "me")
    assert all(sessions.claim(f"his {i}", "him") for i in range(500))
    assert not sessions.claim("mine", "him")
    assert sessions.claim("his 1", "me"), "given up long ago"
    assert not sessions.claim("his 499", "me")


def test_a_caller_is_slowed_down_and_others_are_not(monkeypatch):
    now = [0.0]
    limits = RateLimits(clock=lambda: now[0])
    monkeypatch.setitem(ALLOWANCES, "viewer", Allowance(2.0, 5.0, 3))

    def ask(caller: str = "a") -> bool:
        allowed = limits.enter(caller, "viewer")
        if allowed:
            limits.leave(caller)
        return allowed

    assert [ask() for _ in range(7)] == [True] * 5 + [False] * 2
    assert ask("b")
    now[0] += 1.0
    assert [ask() for _ in range(3)] == [True, True, False]
    now[0] += 100.0
    assert [limits.enter("a", "viewer") for _ in range(4)] == [True, True, True, False], "three at once"
