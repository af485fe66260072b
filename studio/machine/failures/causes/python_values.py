"""Failures of plain Python values: kinds that do not go together, a call without its brackets, what ran out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.key_errors import read_row_number
from studio.machine.failures.package_frames import LONGEST, breaking_package, read_use
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
USED = re.compile(
    r"'(?P<kind>[\w.]+)' object (?:is not (?P<how>subscriptable|iterable|callable|an iterator)|"
    r"does not support (?P<does>item (?:assignment|deletion)|indexing))|"
    r"cannot unpack non-iterable (?P<unpacked>[\w.]+) object|argument of type '(?P<sought>[\w.]+)' is not iterable|"
    r"object of type '(?P<counted>[\w.]+)' has no len\(\)|unhashable type: '(?P<hashed>[\w.]+)'|"
    r"[^\n]{1,60} must be [^\n]{2,120}?,? (?:not|got) (?:an? )?(?:type )?'?(?P<given>\w+)'?\.?$|"
    r"'in <string>' requires string as left operand, not (?P<searched>\w+)|"
    r"'(?P<numbered>[\w.]+)' object cannot be (?:interpreted as an integer|converted to)"
)
"""What Python says of one value that is used as if it were of another kind."""
WAYS = ("kind", "unpacked", "sought", "counted", "hashed", "given", "numbered", "searched")
"""Which of its parts names the kind."""
ABSENT = re.compile(
    r"(?P<says>tuple\.index\(x\): x not in tuple|list\.(?:remove|index)\(x\): x not in list|substring not found|"
    r"[^\n]{1,80} is not in (?:list|deque|range|tuple))"
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


def _read_number(reading: Reading) -> Values:
    """A text where a number is wanted; an empty one shows nothing, nor does a message that was cut."""
    found = _reader(("ValueError",), NUMBER)(reading)
    return None if found is None else {"says": "…"} | found


def _read_kinds(reading: Reading) -> Values:
    """Two values of kinds that do not go together."""
    found = _reader(("TypeError",), KINDS)(reading)
    raised = reading.last
    # What is None was never made: none_value says so.
    if found is None or raised is None or "NoneType" in found.values():
        return None
    first, second = ([*found.values(), ""])[:2]
    return {"first": first, "second": second or "?", "says": (raised.source or raised.message)[:LONGEST]}


def _read_used(reading: Reading) -> Values:
    """One value of another kind than the line of code uses; what is None was never made."""
    found, raised = _reader(("TypeError",), USED)(reading), reading.last
    if found is None or raised is None:
        return None
    kind = next((found[name] for name in WAYS if name in found), "")
    says = (raised.source or raised.message).partition("\n")[0][:LONGEST]
    # A package's own code that breaks, and a class of a package, have entries of their own.
    known = kind in ("", "NoneType", "type", "ABCMeta") or breaking_package(reading)[0] or read_use(reading)
    return None if known else {"kind": kind, "says": says}


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
        "kind_used",
        None,
        (Remedy("print_kinds"), Remedy("upgrade_all")),
        code="V83",
        reader=_read_used,
        last_resort=True,
        strength=0.3,
    ),
    Failure(
        # A number of so many digits in a list of tokens is a token's.
        "token_absent",
        said(r"ValueError: (?P<name>\d{5,6}) is not in list"),
        (Remedy("files_of_one_time"), Remedy("upgrade_all")),
        code="V87",
    ),
    Failure(
        "value_absent",
        None,
        (Remedy("print_both"), Remedy("print_row")),
        code="V84",
        reader=_reader(("ValueError",), ABSENT),
        last_resort=True,
    ),
    Failure(
        # The value stands among those that the same sentence allows.
        "refuses_own",
        said(
            r"(?:either|one of|[^\n]\bin \[)[^\n]{0,200}?['\"](?P<name>\w{1,60})['\"][^\n]{0,200}?"
            r"\b(?:got|received):? ['\"](?P=name)['\"]"
        ),
        (Remedy("upgrade_all"), Remedy("newer_program")),
        code="V85",
    ),
    Failure(
        "row_number",
        None,
        (Remedy("numbered_anew"), Remedy("list_of_rows")),
        code="D243",
        reader=read_row_number,
    ),
    Failure(
        "text_for_number",
        None,
        (Remedy("number_in_place"), Remedy("print_row")),
        code="V78",
        reader=_read_number,
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
        said(
            r"^StopIteration\s*$",
            r"generator raised StopIteration",
            r"IndexError: pop from (?:an )?empty",
            r"(?:max|min)\(\) (?:arg is an empty sequence|iterable argument is empty)",
        ),
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
