"""Reads which package or file is missing, and whether it is one of the program's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.package_names import KNOWN, LIBRARIES, OWN_MODULES, PIP_NAMES, pip_name
from studio.machine.failures.traceback_calls import MODULE, read_import

Values = Mapping[str, str] | None
PIP = re.compile(
    r"(?:\bpip3? install (?:-{1,2}[\w-]+ )*|[Mm]ake sure to install (?=[`'\"]?\w+[`'\"]? (?:if|to|before)\b))"
    r"[`'\"]?(?P<module>[A-Za-z][\w.-]+)(?![\w.-]*[<>=~\[])"
)


def read_missing(reading: Reading) -> Values:
    """A package that is not installed."""
    raised = reading.last
    found = MODULE.search(raised.message) if raised else None
    if (
        raised
        and not found
        and raised.type in ("ImportError", "PackageNotFoundError", "RuntimeError", "ValueError")
    ):
        found = PIP.search(raised.message)
    if raised is None or found is None or read_import(reading) or read_own_module(reading):
        return None
    # What Python itself brings, and names that no package can have.
    if found["module"] in ("pip", "ensurepip") or found["module"].startswith("__"):
        return None
    values = {"module": pip_name(found["module"])}
    root = found["module"].partition(".")[0]
    # A name that no known package has, asked for by the program itself, may be a file of it.
    known = root in LIBRARIES or root in PIP_NAMES or root.lower() in KNOWN
    own = raised.type in ("ModuleNotFoundError", "ImportError") and raised.packages[:1] in ((), ("",))
    return values if known or not own or "pip install" in raised.message else {**values, "doubtful": "1"}


def read_own_module(reading: Reading) -> Values:
    """A file of the program itself that Python does not find."""
    raised = reading.last
    found = MODULE.search(raised.message) if raised and raised.type == "ModuleNotFoundError" else None
    if raised is None or found is None or found["module"].partition(".")[0] not in OWN_MODULES:
        return None
    return {"module": found["module"]} if raised.packages[:1] in ((), ("",)) else None
