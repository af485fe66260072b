"""Failures of the arithmetic: values that are not finite, indices out of range, formats that do not match."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import CHECK_DATA, LEAVE_FP16, LOWER_RATE, RESUME

FAILURES = (
    Failure(
        "non_finite",
        said(r"\bnon-?finite\b", r"loss is nan", r"\bNonFinite\b"),
        (LOWER_RATE, LEAVE_FP16, CHECK_DATA),
    ),
    Failure(
        "token_range",
        said(
            r"index out of range in self",
            r"srcIndex < srcSelectDimSize",
            r"Assertion .{0,40}t >= 0 && t < n_classes",
            r"Target -?\d+ is out of bounds",
            r"ind >= 0 && ind < ind_dim_size",
        ),
        (Remedy("matching_tokenizer"),),
    ),
    Failure(
        "sampling",
        said(r"probability tensor contains either"),
        (Remedy("greedy"), LEAVE_FP16),
    ),
    Failure(
        "number_format",
        said(
            r"mat1 and mat2 (?:to have|must have) the same dtype",
            r"expected scalar type \w+ but found",
            r"expected m1 and m2 to have the same dtype",
        ),
        (Remedy("use_fp32", {"model.precision": "fp32"}), RESUME),
    ),
)
