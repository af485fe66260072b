"""Failures of plain Python values: kinds that do not go together, a call without its brackets, what ran out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.package_frames import LONGEST
from studio.machine.failures.traceback_calls import in_studio

Values = Mapping[str, str] | None
KINDS = re.compile(
    r"'[<>]=?' not supported between instances of '(?P<first>\w+)' and '(?P<second>\w+)'|"
    r"can only concatenate (?P<one>\w+) \(not \"(?P<other>\w+)\"\) to|"
    r"unsupported operand type\(s\) for [^:\n]{1,20}: '(?P<left>\w+)' and '(?P<right>\w+)'|"
    r"sequence item \d+: expected (?P<wants>\w+) instance, (?P<has>\w+) found|"
    r"expected (?P<text>string) or bytes-like object(?:, got '(?P<got>\w+)')?"
)
"""What Python says of two values that it cannot compare, add or join; the kinds in the order of the message."""
CALLED = re.compile(
    r"'(?P<kind>method|function|builtin_function_or_method|property)' object is not (?:subscriptable|iterable)"
)
NUMBER = re.compile(
    r"(?:could not convert string to float:|invalid literal for int\(\) with base 10:) ?(?P<says>'[^'\n]{0,60}'|\S*)"
)


def _reader(kinds: tuple[str, ...], pattern: re.Pattern[str]) -> Callable[[Reading], Values]:
    """Return the reader of one sentence of Python's, raised outside of our own code."""

    def read(reading: Reading) -> Values:
        raised = reading.last
        if raised is None or raised.type not in kinds or raised.wraps or in_studio(reading):
            return None
        found = pattern.match(raised.message)
        return None if found is None else {key: value for key, value in found.groupdict().items() if value}

    return read


def _read_kinds(reading: Reading) -> Values:
    """Two values of kinds that do not go together."""
    found = _reader(("TypeError",), KINDS)(reading)
    raised = reading.last
    # What is None was never made: none_value says so.
    if found is None or raised is None or "NoneType" in found.values():
        return None
    first, second = ([*found.values(), ""])[:2]
    return {"first": first, "second": second or "?", "says": (raised.source or raised.message)[:LONGEST]}


FAILURES = (
    Failure(
        "call_forgotten",
        None,
        (Remedy("add_brackets"), Remedy("upgrade_all")),
        code="V77",
        reader=_reader(("TypeError",), CALLED),
        last_resort=True,
    ),
    Failure(
        "kinds_mixed",
        None,
        (Remedy("print_kinds"), Remedy("write_number")),
        code="V76",
        reader=_read_kinds,
        last_resort=True,
    ),
    Failure(
        "text_for_number",
        None,
        (Remedy("number_in_place"), Remedy("print_row")),
        code="V78",
        reader=_reader(("ValueError",), NUMBER),
        last_resort=True,
    ),
    Failure(
        "divided_by_zero",
        None,
        (Remedy("count_rows"), Remedy("print_counts")),
        code="V79",
        reader=_reader(("ZeroDivisionError",), re.compile(r"(?P<says>[^\n]*)")),
        last_resort=True,
    ),
    Failure(
        "nothing_left",
        said(r"^StopIteration\s*$", r"generator raised StopIteration", r"IndexError: pop from (?:an )?empty"),
        (Remedy("count_rows"), Remedy("fresh_iterator")),
        code="V80",
        strength=0.9,
    ),
    Failure(
        "changed_in_loop",
        said(r"(?:dictionary|[Ss]et|OrderedDict|deque) (?:changed size|mutated) during iteration"),
        (Remedy("copy_before_loop"), Remedy("upgrade_all")),
        code="V81",
        strength=0.9,
    ),
    Failure(
        # A class that computes the value itself does not let it be assigned.
        "read_only_attribute",
        said(
            r"AttributeError: can't (?:set|delete) attribute(?: '(?P<name>\w+)')?",
            r"property '(?P<name>\w+)' of '(?P<kind>\w+)' object has no (?:setter|deleter)",
        ),
        (Remedy("code_of_version"), Remedy("other_name_own")),
        code="V82",
    ),
)
