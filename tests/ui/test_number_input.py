"""Numbers as people write them, and the way back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.ui.number_input import read_number, show_number


@pytest.mark.parametrize(
    "raw,value",
    [
        ("1e-4", 1e-4), ("1E-4", 1e-4), ("0,0002", 0.0002), (" .5 ", 0.5), ("-3", -3), ("２，５", 2.5), ("１０", 10),
        ("1.000,5", 1000.5), ("1,000.5", 1000.5), ("−1", -1), ("1 000", 1000), ("10'000", 10_000), (3, 3), (0.5, 0.5),
        ("", None), ("  ", None), ("1e-", None), ("e", None), ("nan", None), ("inf", None), ("1e999", None),
        ("1.2.3", None), ("0x10", None), ("five", None), (None, None), (True, None), (float("nan"), None),
        ("--1", None), ("1_0", None), ("9" * 400, None),
    ],
)  # fmt: skip
def test_read(raw, value):
    assert read_number(raw, whole=False) == value


@pytest.mark.parametrize(
    "raw,value", [("1,000", 1000), ("1.000", 1000), ("16.0", 16), ("1e3", 1000), ("2,5", 2.5), ("16", 16),
    ("0,500", 0.5), ("0.100", 0.1), ("0,000", 0), ("10,000", 10_000), ("-1.000.000", -1_000_000)],
)  # fmt: skip
def test_read_whole(raw, value):
    read = read_number(raw, whole=True)
    assert read == value and isinstance(read, int) == float(value).is_integer()


@pytest.mark.parametrize(
    "value,words",
    [(2e-4, "0.0002"), (1e-5, "0.00001"), (1e-8, "1e-8"), (2.5e-7, "2.5e-7"), (3.0, "3"), (0.0, "0"), (16, "16"),
     (1000.0, "1000"), (0.999, "0.999"), (1e-10, "1e-10")],
)  # fmt: skip
def test_show(value, words):
    assert show_number(value) == words


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_is_shown_is_read_back(value):
    assert math.isclose(read_number(show_number(value), whole=False), value, rel_tol=0, abs_tol=0)


@pytest.mark.parametrize("raw", [10**400, -(10**400), float("nan"), float("inf"), "1e400", "9" * 400])
@pytest.mark.parametrize("whole", [True, False])
def test_what_no_float_can_hold_is_no_number(raw, whole):
    assert read_number(raw, whole=whole) is None
