"""When a run is held for stalled: its own pace, budgets of phases, sleep, patience."""

from __future__ import annotations

import pytest

from studio.core.stall_timeout import BUDGETS_S, BUDGETS_VARIABLE, Pace, read_budgets


def beats(pace: Pace, phase: str, count: int, every_s: float, start_s: float = 0.0) -> float:
    """Beat `count` times in `phase`; returns the time of the last."""
    for number in range(count):
        pace.beat((phase, number, 0), start_s + number * every_s)
    return start_s + (count - 1) * every_s


def test_before_the_first_sign_of_life_nothing_is_late():
    pace = Pace(BUDGETS_S)
    assert pace.waited_s(1e9) == 0.0 and pace.limit_s() == float("inf")


@pytest.mark.parametrize(("every_s", "limit_s"), [(0.1, 60.0), (6.0, 60.0), (9.0, 90.0)])
def test_quick_steps_have_a_minute_and_slow_ones_ten_times_their_median(every_s, limit_s):
    pace = Pace(BUDGETS_S)
    last_s = beats(pace, "train", 20, every_s)
    assert pace.limit_s() == pytest.approx(limit_s)
    assert pace.waited_s(last_s + 61) == pytest.approx(61)


def test_only_the_last_fifty_intervals_count_and_one_long_one_changes_nothing():
    pace = Pace(BUDGETS_S)
    last_s = beats(pace, "train", 60, 20.0)
    last_s = beats(pace, "train", 51, 7.0, last_s + 7.0)
    pace.beat(("train", 99, 0), last_s + 500)
    assert pace.limit_s() == pytest.approx(70.0)


def test_each_phase_has_its_own_budget_and_its_own_pace():
    pace = Pace(BUDGETS_S)
    pace.beat(("train", 1, 0), 0.0)
    pace.beat(("train", 1, 1), 0.5)
    assert pace.limit_s() == BUDGETS_S["first"]  # it may compile kernels, its optimizer too
    last_s = beats(pace, "train", 5, 1.0, 1.0)
    pace.beat(("save", 5, 0), last_s + 1)
    assert pace.limit_s() == BUDGETS_S["save"]
    pace.beat(("train", 6, 0), last_s + 400)
    assert pace.limit_s() == 60.0
    pace.beat(("polish", 6, 0), last_s + 401)
    assert pace.limit_s() == BUDGETS_S["floor"]


def test_a_slow_first_step_makes_nobody_wait_longer_for_the_second():
    pace = Pace(BUDGETS_S)
    pace.beat(("train", 1, 0), 0.0)  # compiles for eight minutes
    pace.beat(("train", 2, 0), 480.0)
    assert pace.limit_s() == BUDGETS_S["first"]  # nothing is known of its pace yet
    pace.beat(("train", 3, 0), 481.0)
    assert pace.limit_s() == BUDGETS_S["floor"]


def test_patience_lasts_until_the_next_sign_of_life():
    pace = Pace(BUDGETS_S)
    last_s = beats(pace, "train", 5, 1.0)
    pace.extend(last_s + 61)
    assert pace.limit_s() == pytest.approx(122.0)
    pace.extend(last_s + 130)
    assert pace.limit_s() == pytest.approx(260.0)
    pace.beat(("train", 6, 0), last_s + 300)
    assert pace.limit_s() == 60.0


def test_a_sleep_starts_the_wait_anew_and_is_told():
    pace = Pace(BUDGETS_S)
    last_s = beats(pace, "train", 5, 1.0)
    assert pace.tick(last_s, 1000.0) == 0.0
    assert pace.tick(last_s + 1, 1001.0) == 0.0
    # Linux: eight hours on the wall, two seconds on the monotonic clock.
    assert pace.tick(last_s + 3, 1001.0 + 28_800) == pytest.approx(28_798)
    assert pace.waited_s(last_s + 4) == pytest.approx(1.0)


def test_a_gap_between_two_looks_starts_the_wait_anew_but_is_not_called_a_sleep():
    pace = Pace(BUDGETS_S)
    last_s = beats(pace, "train", 5, 1.0)
    pace.tick(last_s, 1000.0)
    assert pace.tick(last_s + 3600, 4600.0) == 0.0
    assert pace.waited_s(last_s + 3601) == pytest.approx(1.0)


def test_budgets_can_be_made_short_and_a_wrong_one_is_named():
    assert read_budgets({}) == BUDGETS_S
    short = read_budgets({BUDGETS_VARIABLE: '{"floor": 2, "save": 3.5}'})
    assert (short["floor"], short["save"], short["load"]) == (2.0, 3.5, BUDGETS_S["load"])
    with pytest.raises(ValueError, match="flor"):
        read_budgets({BUDGETS_VARIABLE: '{"flor": 2}'})
