"""Failures of an object that stands where another one is meant: an error passed on as a result, a layer taken out."""

from __future__ import annotations

from studio.machine.failures.failure import Doubt, Failure, Remedy, said

OF_AN_ERROR = (
    r"(?:message|msg|code|status\w*|response|request|errno|strerror|reason|body|details?|errors|args|"
    r"error\w*|error_code|filename|headers|json|doc|name|obj|returncode|stderr|stdout|cmd|output|exit_code|"
    r"add_note|with_traceback|__\w+__)"
)
"""What a program asks an error for that it caught."""

FAILURES = (
    Failure(
        "error_as_result",
        said(
            rf"'(?P<kind>[A-Z]\w*(?:Error|Exception))' object has no attribute '(?P<name>(?!{OF_AN_ERROR}')\w+)'",
            r"'(?P<kind>[A-Z]\w*(?:Error|Exception))' object is not (?P<name>subscriptable|iterable|callable)",
        ),
        (Remedy("look_at_first_error", needs=("kind",)), Remedy("newer_program")),
        code="V92",
    ),
    Failure(
        # Since datasets 4 a column is read when it is asked for, by plain numbers alone.
        "column_object",
        said(
            r"Wrong key type: '[^'\n]*' of type '<class '(?P<kind>[\w.]+)'>'",
            r"'Column' object (?:has no attribute '(?P<name>\w+)'|does not support \w+|is not \w+)",
        ),
        (Remedy("list_of_column"), Remedy("plain_number")),
        code="V94",
    ),
    Failure(
        # How models lose a layer: torch.nn.Identity takes its place, and hands on what it is given.
        "layer_replaced",
        said(r"'Identity' object has no attribute '(?P<name>\w+)'"),
        (Remedy("no_fused_loss"), Remedy("class_with_head")),
        code="V93",
        doubt=Doubt("api_attribute", "versions", asked=True),
    ),
)
