"""Which cases of a test run each time: the others are marked `computing`, for `launch.py test --all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *each_time: Any) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`, those not in `each_time` marked; a name without a case fails."""
    listed = list(cases)
    assert all(one in listed for one in each_time), (each_time, listed)
    return [one if one in each_time else pytest.param(one, marks=pytest.mark.computing) for one in listed]
