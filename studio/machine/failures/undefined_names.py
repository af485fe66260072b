"""Reads which name is not defined: a package's own, one that it imports only where it can, or a program's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.code_places import MODEL_CODE
from studio.machine.failures.error_text import Reading
from studio.machine.failures.package_names import named_package, owner_of, pip_name
from studio.machine.failures.traceback_calls import in_studio, values_of

Values = Mapping[str, str] | None
NAME = re.compile(
    r"name '(?P<name>\w+)' is not defined|"
    r"(?:local|free) variable '(?P<unset>\w+)' (?:where it is not|referenced before)"
)
NEW_TYPES = re.compile(
    r"unsupported operand type\(s\) for \|: '(?:\w*type|\w*Meta)'|'(?:ABCMeta|type)' object is not subscriptable"
)


def read_guarded(reading: Reading) -> Values:
    """A name of another package that a package imports only where that one is there."""
    raised = reading.last
    found = NAME.search(raised.message) if raised and raised.type == "NameError" else None
    if raised is None or found is None or not found["name"] or not raised.packages:
        return None
    owner, inside = owner_of(found["name"]) or named_package(found["name"]), raised.packages[0]
    if not owner or inside in ("", "python", MODEL_CODE, owner):
        return None
    return {
        "name": found["name"],
        "package": pip_name(owner),
        "caller": pip_name(inside),
        "module": pip_name(owner),
    }


def read_unloaded(reading: Reading) -> Values:
    """A package's own name that is not defined, without the place."""
    raised = reading.last
    found = NAME.search(raised.message) if raised and raised.type == "NameError" else None
    package = named_package(found["name"] or "") if found else ""
    if raised is None or found is None or not package or raised.frames:
        return None
    return {"name": found["name"], "package": pip_name(package), "module": pip_name(package)}


def read_compiled_part(reading: Reading) -> Values:
    """A compiled part of a package that it loads only where that works, and then uses all the same."""
    raised = reading.last
    found = NAME.search(raised.message) if raised and raised.type == "NameError" else None
    part = found is not None and re.fullmatch(
        r"_?\w+_(?:ext|cuda|kernels?|C|lib|ops)|_C", found["name"] or ""
    )
    if raised is None or found is None or not part or raised.packages[:1] in ((), ("",), ("python",)):
        return None
    return {"name": found["name"], "package": pip_name(raised.packages[0])}


def read_unbound(reading: Reading) -> Values:
    """A variable that one of the ways through a function never sets, outside of any package or nobody knows where."""
    raised = reading.last
    if raised is None or raised.type not in ("UnboundLocalError", "NameError") or in_studio(reading):
        return None
    found = re.search(r"(?:local|free) variable '(?P<name>\w+)'", raised.message)
    if found is None or raised.packages[:1] not in ((), ("",), ("python",)):
        return None
    return {"name": found["name"]} if raised.frames else {"name": found["name"], "doubtful": "1"}


def read_name(reading: Reading) -> Values:
    """A name that is not defined inside an installed package."""
    if read_guarded(reading) or read_compiled_part(reading):
        return None
    raised = reading.last
    found = (
        NAME.search(raised.message) if raised and raised.type in ("NameError", "UnboundLocalError") else None
    )
    if raised is None or found is None or not raised.packages:
        return None
    innermost = raised.packages[0]
    outside = innermost in ("", "python", MODEL_CODE)
    return None if outside else values_of(raised, found["name"] or found["unset"], innermost)


def read_newer_package(reading: Reading) -> Values:
    """A package whose code this Python does not know: written with what a later one brought."""
    raised = reading.last
    types = raised is not None and raised.type == "TypeError" and NEW_TYPES.search(raised.message)
    if raised is None or raised.packages[:1] in ((), ("",), ("python",)):
        return {"package": ""} if types else None
    grammar = raised.type == "SyntaxError" and "unicode" not in raised.message
    return {"package": pip_name(raised.packages[0])} if grammar or types else None


def read_own_name(reading: Reading) -> Values:
    """A name that is not defined in the program itself."""
    raised = reading.last
    found = NAME.search(raised.message) if raised and raised.type == "NameError" else None
    own = not in_studio(reading) and (
        raised is not None
        and raised.packages[:1] == ("",)
        and "unsloth_compiled" not in raised.frames[-1].path
    )
    known = found is not None and own and found["name"]
    return {"name": found["name"], "package": owner_of(found["name"])} if found and known else None


def read_bare_name(reading: Reading) -> Values:
    """A name that is not defined, without the place."""
    if read_unloaded(reading) or read_bare_owned(reading):
        return None
    return _read_bare(reading)


def read_bare_owned(reading: Reading) -> Values:
    """A known package's name that is not defined, without the place: another package may use it without asking."""
    found = _read_bare(reading)
    return {**found, "module": pip_name(found["package"])} if found and found["package"] else None


def _read_bare(reading: Reading) -> Values:
    raised = reading.last
    found = NAME.search(raised.message) if raised and raised.type == "NameError" else None
    if raised is None or found is None or not found["name"] or raised.frames:
        return None
    return {"name": found["name"], "package": owner_of(found["name"])}
