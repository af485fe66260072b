"""Failures of values that a text stands for: literals that Python reads, and what a template writes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure, Remedy, said
from studio.machine.failures.package_names import LIBRARIES, pip_name
from studio.machine.failures.remedies import USE_FP16

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


def _read_table(reading: Reading) -> Mapping[str, str] | None:
    """A table of pandas that is asked for its row by number, as PyTorch asks a dataset."""
    raised = reading.last
    if raised is None or raised.type != "KeyError" or not raised.message.strip("' ").isdigit():
        return None
    loaded = any(re.search(r"[\\/]utils[\\/]data[\\/]", frame.path) for frame in raised.frames)
    return {"kind": "DataFrame"} if loaded and raised.packages[:1] == ("pandas",) else None


QUANTISERS = {
    "bitsandbytes": r"Params4bit|Int8Params|Linear4bit|Linear8bitLt|QuantState",
    "quanto": r"Q(?:Bytes|Bits)Tensor|Weight(?:QBytes|QBits)Tensor|QLinear|QModuleMixin",
    "torchao": r"AffineQuantizedTensor|TorchaoLoraLinear|LinearActivationQuantizedTensor|NF4Tensor",
    "gptqmodel": r"\w*QuantLinear",
    "autoawq": r"WQLinear\w*",
    "hqq": r"HQQLinear\w*",
    "compressed-tensors": r"CompressedLinear",
}
"""Classes of weights, by the package that quantises so."""


def _read_two_quantisers(reading: Reading) -> Mapping[str, str] | None:
    """A message that names quantised weights of two packages: what one of them made, the other one was given."""
    raised = reading.last
    if raised is None or raised.wraps:
        return None
    said_of = [
        name for name, classes in QUANTISERS.items() if re.search(rf"\b(?:{classes})\b", raised.message)
    ]
    return {"packages": " ".join(said_of)} if len(said_of) > 1 else None


FAILURES = (
    Failure(
        "listed_refused",
        None,
        (Remedy("upgrade_package", needs=("package",)), Remedy("other_listed")),
        code="V67",
        reader=_read_listed,
    ),
    Failure(
        "quantised_fp16",
        said(r"bfloat16 is not supported for quantization method (?P<name>\w+)"),
        (Remedy("serve_half"), USE_FP16),
        code="D197",
    ),
    Failure(
        "table_given",
        said(
            r"'(?P<kind>DataFrame|Series|list)' object has no attribute '(?:map|column_names|features|"
            r"train_test_split|remove_columns|rename_column|cast_column|to_iterable_dataset)'",
        ),
        (Remedy("dataset_of_table"),),
        code="D198",
        reader=_read_table,
    ),
    Failure(
        "splits_given",
        said(
            r"(?:Column to remove|Original column name)s?[^\n]{0,20}'(?:train|test|validation)'"
            r"[^\n]{0,60}not in the dataset"
        ),
        (Remedy("one_split"),),
        code="D199",
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
        reader=_read_two_quantisers,
    ),
    Failure(
        "template_broken",
        said(r"TemplateSyntaxError\b"),
        (Remedy("template_of_maker"), Remedy("newer_template")),
        code="D200",
    ),
    Failure(
        "template_lacks",
        said(
            r"Object of type Undefined is not JSON serializable",
            r"UndefinedError: [^\n]{1,80} is undefined",
        ),
        (Remedy("keys_of_template"), Remedy("newer_template")),
        code="D189",
    ),
    Failure(
        "csv_field",
        said(r"field larger than field limit"),
        (Remedy("close_quote"), Remedy("larger_field")),
        code="D246",
    ),
)
