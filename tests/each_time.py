"""Which cases of a test run each time: the others are marked `computing`, for `launch.py test --all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *each_time: Any) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`, those not in `each_time` marked; a name without a case fails."""
    return [pytest.param(one, marks=marks) for one, marks in _marked(list(cases), each_time)]


def some_of_several(cases: Iterable[tuple], *each_time: tuple) -> list[Any]:
    """Return the same where a case is a tuple, one value for each of several arguments."""
    return [pytest.param(*one, marks=marks) for one, marks in _marked(list(cases), each_time)]


def _marked(cases: list, each_time: tuple) -> list[tuple[Any, tuple]]:
    assert each_time and all(one in cases for one in each_time), (each_time, cases)
    return [(one, () if one in each_time else (pytest.mark.computing,)) for one in cases]
