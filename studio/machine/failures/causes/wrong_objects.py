"""Failures of an object that stands where another one is meant: an error passed on as a result, a layer taken out."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said

AN_ERROR = r"'(?P<kind>[A-Z]\w*(?:Error|Exception))' object"
OF_AN_ERROR = (
    r"(?:message|msg|code|status\w*|response|request|errno|strerror|reason|body|details?|errors|args|"
    r"error\w*|error_code|filename|headers|json|doc|name|obj|returncode|stderr|stdout|cmd|output|exit_code|"
    r"url|retry\w*|http_\w+|server_\w+|user_\w+|text|lineno|colno|pos|type|param|"
    r"add_note|with_traceback|__\w+__)"
)
"""What a program asks an error for that it caught."""
COLUMN = re.compile(
    r"'Column' object (?:has no attribute '(?P<name>\w+)'|does not support \w+|is not (?P<how>\w+))"
)
OF_A_DATASET = re.compile(
    r"\bload_dataset\(|\bDataset\.from_|[\\/](?:datasets|trl|sentence_transformers)[\\/]\w"
)
"""What a text holds in which a Column is one of datasets."""
OF_A_QUERY = re.compile(r"\b(?:pyspark|sqlalchemy)\b", re.IGNORECASE)
"""The same of the libraries whose columns stand for an expression."""


def _read_column(reading: Reading) -> Mapping[str, str] | None:
    """Find a column of datasets that is used like a list; doubtful where nothing shows whose it is."""
    said = COLUMN.search(reading.last.message) if reading.last is not None else None
    if said is None or OF_A_QUERY.search(reading.words):
        return None
    return {} if OF_A_DATASET.search(reading.words) else {"doubtful": "kind"}


def _read_query_column(reading: Reading) -> Mapping[str, str] | None:
    """Find a column of a query's that is used like values."""
    said = COLUMN.search(reading.last.message) if reading.last is not None else None
    return {} if said is not None and OF_A_QUERY.search(reading.words) else None


FAILURES = (
    Failure(
        "error_as_result",
        said(
            rf"{AN_ERROR} has no attribute '(?P<name>(?!{OF_AN_ERROR}')\w+)'",
            rf"{AN_ERROR} is not (?P<name>subscriptable|iterable|callable)",
        ),
        (Remedy("look_at_first_error", needs=("kind",)), Remedy("newer_program")),
        code="V92",
        doubt=Doubt("caught_error", "behind_except"),
    ),
    Failure("caught_error", None, (Remedy("fields_of_error"), Remedy("newer_program")), code="V96"),
    Failure(
        # As datasets says it of a row's number, in a dataset and in a column alike.
        "row_key",
        said(r"Wrong key type: '[^'\n]*' of type '<class '(?P<kind>[\w.]+)'>'"),
        (Remedy("plain_number"),),
        code="V97",
    ),
    Failure(
        # Since datasets 4 a column is read when it is asked for.
        "column_object",
        None,
        (Remedy("list_of_column"), Remedy("older_datasets")),
        code="V94",
        reader=_read_column,
        doubt=Doubt("query_column", "module_of_column", asked=True),
    ),
    Failure("query_column", None, (Remedy("collect_column"),), code="V98", reader=_read_query_column),
    Failure(
        # How models lose a layer: torch.nn.Identity takes its place, and hands on what it is given.
        "layer_replaced",
        said(r"'Identity' object has no attribute '(?P<name>weight)'"),
        (Remedy("no_fused_loss"), Remedy("class_with_head")),
        code="V93",
        doubt=Doubt("api_attribute", "versions", asked=True),
    ),
    Failure(
        # A fused loss asks for the weight alone; a size is asked for by who puts a head on.
        "layer_identity",
        said(r"'Identity' object has no attribute '(?P<name>(?!weight')\w+)'"),
        (Remedy("size_before_layer"),),
        code="V99",
    ),
)
