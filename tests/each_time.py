"""Which cases of a test run each time: the others are marked `computing`, for `launch.py test --all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *each_time: Any) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`, those not in `each_time` marked; a name without a case fails."""
    listed = list(cases)
    assert each_time and all(one in listed for one in each_time), (each_time, listed)
    return [one if one in each_time else rarely(one) for one in listed]


def some_of_several(cases: Iterable[tuple], *each_time: tuple) -> list[Any]:
    """Return the same where a case is a tuple of values for several arguments."""
    listed = list(cases)
    assert each_time and all(one in listed for one in each_time), (each_time, listed)
    return [one if one in each_time else rarely(*one) for one in listed]


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases, of which the first and each `step`-th after it run each time."""
    return [
        one if number % step == 0 else rarely(*(one if isinstance(one, tuple) else (one,)))
        for number, one in enumerate(cases)
    ]


def rarely(*values: Any) -> Any:
    """Return the case of these values, one for each argument, that runs with `--all`."""
    return pytest.param(*values, marks=pytest.mark.computing)
