"""Failures of values that a text stands for: literals that Python reads, and what a template writes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.packages import LIBRARIES, pip_name
from studio.machine.failures.reading import Reading

REFUSED = re.compile(
    r"one of \[(?P<listed>[^\]\n]{3,300})\][^\n]{0,40}(?:not|got|but)[^\n]{0,20}?[`'\"](?P<value>[\w.-]+)[`'\"]"
)


def _read_listed(reading: Reading) -> Mapping[str, str] | None:
    """A value that a message refuses, and that the same message lists among those that it takes."""
    raised = reading.last
    found = REFUSED.search(raised.message) if raised is not None else None
    listed = re.findall(r"[\w.-]+", found["listed"]) if found else []
    if raised is None or found is None or found["value"] not in listed:
        return None
    named = re.match(r"(?P<name>Unsloth|vLLM|DeepSpeed|Axolotl)\b", raised.message)
    package = next(
        (name for name in raised.packages if name in LIBRARIES), named["name"].lower() if named else ""
    )
    return {"name": found["value"], "package": pip_name(package) if package else ""}


FAILURES = (
    Failure(
        "listed_refused",
        None,
        (Remedy("upgrade_package", needs=("package",)), Remedy("other_listed")),
        code="V67",
        reader=_read_listed,
    ),
    Failure(
        "literal_form",
        said(r"malformed node or string"),
        (Remedy("literal_text"), Remedy("print_row")),
        code="D188",
    ),
    Failure(
        # The marks between which a template puts what the assistant says.
        "template_unmarked",
        said(
            r"(?:missing|not contain|lacks?|without)[^\n]{0,40}\{%-? ?generation ?-?%\}",
            r"assistant_only_loss[^\n]{0,80}no assistant tokens",
        ),
        (Remedy("mark_generation"), Remedy("completions_only")),
        code="D195",
    ),
    Failure(
        "quantised_again",
        said(r"[Qq]uantization only supports 16/32-bit floats, but got torch\.u?int8"),
        (Remedy("load_as_saved"), Remedy("upgrade_transformers_bnb")),
        code="D196",
    ),
    Failure(
        "template_lacks",
        said(r"Object of type Undefined is not JSON serializable"),
        (Remedy("keys_of_template"), Remedy("newer_template")),
        code="D189",
    ),
)
