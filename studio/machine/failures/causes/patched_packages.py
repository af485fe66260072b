"""Failures of a package that alters the classes of another one and meets a version that it does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure, Remedy
from studio.machine.failures.package_names import LIBRARIES, owner_of, pip_name

PATCHES = re.compile(r"\b[Pp]atch(?:ing)? (?:the )?(?:class |function )?[`'\"]?(?P<name>[A-Za-z]\w{3,60})")
SPEAKER = re.compile(r"(?P<name>Unsloth|vLLM|DeepSpeed|Axolotl|Liger)\b", re.IGNORECASE)


def _read_patch(reading: Reading) -> Mapping[str, str] | None:
    """A class of one package that another package could not alter."""
    raised = reading.last
    found = PATCHES.search(raised.message) if raised is not None and not raised.wraps else None
    if raised is None or found is None:
        return None
    speaker = SPEAKER.match(raised.message)
    known = [name for name in raised.packages if name in LIBRARIES]
    package = pip_name(speaker["name"].lower() if speaker else known[0] if known else "")
    other = pip_name(owner_of(found["name"]))
    if not package or not other or package == other:
        return None
    return {"name": found["name"], "package": package, "caller": other}


FAILURES = (
    Failure(
        "patch_refused",
        None,
        (Remedy("upgrade_package", needs=("package",)), Remedy("older_caller", needs=("package", "caller"))),
        code="V72",
        reader=_read_patch,
        last_resort=True,
    ),
)
