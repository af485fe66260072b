"""Failures of reading and rendering a data set."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import CHECK_DATA

FAILURES = (
    Failure(
        "no_template",
        said(r"tokenizer\.chat_template is not set", r"no chat template", r"does not have a chat template"),
        (Remedy("chat_model"),),
        code="D30",
    ),
    Failure(
        "template_refused",
        said(r"jinja2\.", r"\bTemplateError\b", r"roles must alternate", r"\bUndefinedError\b"),
        (CHECK_DATA, Remedy("other_model")),
        code="D31",
    ),
    Failure(
        "not_utf8",
        said(r"\bUnicodeDecodeError\b", r"codec can't decode"),
        (Remedy("save_as_utf8"),),
        code="D32",
    ),
    Failure(
        "bad_json",
        said(
            r"\bJSONDecodeError\b",
            r"JSON parse error(?!: Column)",
            r"Expecting (?:value|property name|',' delimiter)",
        ),
        (CHECK_DATA,),
        code="D33",
    ),
    Failure(
        "no_padding", said(r"does not have a padding token"), (Remedy("matching_tokenizer"),), code="D34"
    ),
    Failure(
        "no_examples",
        said(
            r"num_samples should be a positive integer",
            r"EmptyDatasetError",
            r"doesn't contain any data files",
        ),
        (CHECK_DATA,),
        code="D35",
    ),
    Failure(
        "mixed_columns",
        said(r"\bArrowInvalid\b", r"\bArrowTypeError\b", r"\bDatasetGenerationError\b", r"\bCastError\b"),
        (CHECK_DATA,),
        code="D36",
    ),
)
