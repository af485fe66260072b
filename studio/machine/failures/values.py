"""Failures of values that a text stands for: literals that Python reads, and what a template writes."""

from studio.machine.failures.failure import Failure, Remedy, said

FAILURES = (
    Failure(
        "literal_form",
        said(r"malformed node or string"),
        (Remedy("literal_text"), Remedy("print_row")),
        code="D188",
    ),
    Failure(
        "template_lacks",
        said(r"Object of type Undefined is not JSON serializable"),
        (Remedy("keys_of_template"), Remedy("newer_template")),
        code="D189",
    ),
)
