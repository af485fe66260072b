"""Failures of loading a model or an adapter."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import FETCH_AGAIN, INSTALL, LOCAL_MODEL

FAILURES = (
    Failure(
        "architecture_unknown",
        said(r"does not recognize this architecture"),
        (INSTALL, Remedy("other_model")),
        code="D50",
    ),
    Failure(
        "remote_code",
        said(r"trust_remote_code=True", r"contains custom code which must be executed"),
        (Remedy("other_model"),),
        code="D51",
    ),
    Failure(
        "adapter_targets",
        said(r"Target modules .{0,300}not found in the base model"),
        (Remedy("all_linear", {"adapter.targets": "all-linear"}),),
        code="D52",
    ),
    Failure(
        "shape_mismatch",
        said(r"size mismatch for (?P<layer>[\w.]+)"),
        (Remedy("matching_adapter"), FETCH_AGAIN),
        code="D53",
    ),
    Failure(
        "weights_shape", said(r"You set `ignore_mismatched_sizes` to `False`"), (FETCH_AGAIN,), code="D54"
    ),
    Failure(
        "tokenizer_missing",
        said(
            r"Couldn't instantiate the backend tokenizer",
            r"Can't load tokenizer for",
            r"Unable to load vocabulary",
        ),
        (FETCH_AGAIN, LOCAL_MODEL),
        code="D55",
    ),
)
