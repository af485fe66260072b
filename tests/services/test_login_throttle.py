"""Who guesses at a phrase: slowed down, then locked out, and nobody else with him."""

from __future__ import annotations

from studio.services.login_throttle import (
    LOCKED_S,
    LONGEST_SHARED_WAIT_S,
    TRIES,
    TRIES_OF_ALL,
    TRIES_THEN,
    Throttle,
)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_each_wrong_phrase_costs_more_and_many_lock_the_door():
    clock = Clock()
    throttle = Throttle(clock)
    waits = []
    for i in range(TRIES):
        clock.now_s += throttle.wait_s("a")
        locked = throttle.note_failure("a")
        assert locked == (i == TRIES - 1)
        waits.append(throttle.wait_s("a"))
    assert waits == [0, 0, 2, 4, 8, 16, 32, 64, 64, LOCKED_S]
    assert throttle.wait_s("b") == 0
    clock.now_s += LOCKED_S + 1
    assert throttle.wait_s("a") == 0 and not throttle.note_failure("a"), "counted from the start again"


def test_a_right_phrase_is_forgiven_and_many_addresses_guess_little():
    clock = Clock()
    throttle = Throttle(clock)
    throttle.note_failure("a")
    throttle.note_success("a")
    assert [throttle.note_failure("a") for _ in range(2)] == [False, False] and throttle.wait_s("a") == 0
    for i in range(TRIES_OF_ALL):
        throttle.note_failure(f"10.0.0.{i}")
    assert throttle.wait_s("somebody new") == 0, "who did nothing is kept out by nobody"
    tries = [throttle.note_failure("another of his") for _ in range(TRIES_THEN)]
    assert tries == [False] * (TRIES_THEN - 1) + [True]
    clock.now_s += LOCKED_S + 1
    assert not throttle.note_failure("a")


def test_the_address_of_a_link_is_slowed_down_and_never_locked():
    clock = Clock()
    throttle, waits = Throttle(clock, shared=True), []
    for _ in range(60):
        assert not throttle.note_failure("127.0.0.1")
        waits.append(throttle.wait_s("127.0.0.1"))
        clock.now_s += waits[-1]
    assert waits[:5] == [0, 0, 2, 4, 8] and set(waits[5:]) == {LONGEST_SHARED_WAIT_S}
