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
