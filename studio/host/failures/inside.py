"""Reads what broke inside an installed package: by its version or by what it was given, the text alone does not say."""

from __future__ import annotations

from collections.abc import Mapping

from studio.host.failures.callers import in_studio
from studio.host.failures.packages import KNOWN, LIBRARIES, pip_name
from studio.host.failures.reading import MODEL_CODE, Reading

BREAKS = frozenset(
    "TypeError AttributeError IndexError KeyError UnboundLocalError NameError AssertionError ZeroDivisionError "
    "NotImplementedError StopIteration RecursionError".split()
)
"""What nobody raises to tell a person something: the package's own code met what it does not expect."""
GROUNDS = frozenset(("", "python", "torch", "numpy", "pandas", "pyarrow", MODEL_CODE))
"""What everybody calls: the package above it is the one to look at."""
LONGEST = 240


def breaking_package(reading: Reading) -> tuple[str, str]:
    """Return (the package whose code broke, the one that called it), as pip names them; "" for none."""
    raised = reading.last
    if raised is None or raised.wraps or in_studio(reading) or not raised.frames:
        return "", ""
    # The program's own code below a package's is a function that it handed over.
    order = [name for name in raised.packages if name != "python"]
    if not order or order[0] in ("", MODEL_CODE):
        return "", ""
    known = [name for name in order if name not in GROUNDS and (name in LIBRARIES or name in KNOWN)]
    named = [pip_name(name) for name in known[:2]] + ["", ""]
    return named[0], named[1]


def read_inside(reading: Reading) -> Mapping[str, str] | None:
    """An exception that a package's own code did not mean to raise."""
    raised = reading.last
    package, caller = breaking_package(reading)
    if raised is None or not package or raised.type not in BREAKS:
        return None
    says = raised.message.partition("\n")[0] or raised.source
    return {"package": package, "caller": caller, "says": f"{raised.type}: {says}"[:LONGEST]}
