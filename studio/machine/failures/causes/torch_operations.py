"""Failures of PyTorch's operations of which nothing else is known than what their message speaks of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.package_frames import LONGEST, breaking_package
from studio.machine.failures.package_names import LIBRARIES, pip_name
from studio.machine.failures.traceback_calls import in_studio
from studio.machine.failures.wording import REPORT

Values = Mapping[str, str] | None
KINDS = frozenset(
    "RuntimeError NotImplementedError TypeError IndexError ValueError TorchRuntimeError".split()
)
OF_TENSORS = re.compile(
    r"\"\w+\" not implemented for '|\b\w+Backward\d*\b|cuda\.\w+Tensor|\b\d-?[Dd]\b|\d-dimensional|"
    r"must be on (?:CUDA|CPU)|\b(?:must|should) have (?:the )?(?:same )?shapes?\b|"
    r"\baten::\w|\b[Tt]ensors?\b|\bdtype\b|\bscalar[ _]?type\b|ScalarType|\btorch\.\w+|c10::|at::|\bgrad\b|autograd",
    re.ASCII,
)
"""A word of this kind stands in what PyTorch says of its own values."""
ABSENT = re.compile(
    r"not (?:yet )?(?:implemented|supported|available) (?:for|on|with|by)|does not support|no kernel|"
    r"unsupported (?:dtype|type|device|operation|layout)|not implemented\b|[Cc]ould not run 'aten::",
    re.IGNORECASE,
)
FORMAT = re.compile(
    r"\bdtypes?\b|scalar[ _]?types?\b|ScalarType|\b(?:data|result|input|tensor) types?\b|"
    r"\b(?:Half|BFloat16|c10::\w+|Float8\w*)\b"
)
DEVICE = re.compile(
    r"\bdevices?\b|\bon (?:the )?(?:CPU|GPU|cpu|cuda)\b|\bcuda:\d|pin(?:ned)? memory", re.IGNORECASE
)
GRADIENT = re.compile(
    r"\bgrad(?:ients?|_fn)?\b|autograd|backward|in-?place|leaf variable|requires_grad|inference tensor|\bgraph\b",
    re.IGNORECASE,
)
SHAPE = re.compile(
    r"\b(?:shapes?|sizes?|dim(?:ension)?s?|stride|numel|elements|rank|length|broadcast\w*)\b|\d+-?D\b|\d-dimensional",
    re.IGNORECASE,
)


def _of_torch(reading: Reading) -> bool:
    raised = reading.last
    if raised is None or raised.wraps or in_studio(reading) or raised.type not in KINDS:
        return False
    # What calls itself a fault of its package is one.
    if REPORT.search(raised.message):
        return False
    inside = raised.packages[:1] == ("torch",)
    return inside or (
        raised.type in ("RuntimeError", "TorchRuntimeError", "NotImplementedError")
        and bool(OF_TENSORS.search(raised.message))
    )


def _reader(pattern: re.Pattern[str], *earlier: re.Pattern[str]) -> Callable[[Reading], Values]:
    def read(reading: Reading) -> Values:
        raised = reading.last
        if raised is None or not _of_torch(reading):
            return None
        says = raised.message.partition("\n")[0]
        if not pattern.search(says) or any(other.search(says) for other in earlier):
            return None
        callers = [pip_name(name) for name in raised.packages if name in LIBRARIES and name != "torch"]
        return {
            "says": says[:LONGEST],
            "caller": (callers + [""])[0],
            "packages": " ".join(["torch", *callers[:3]]),
        }

    return read


SEVERAL = re.compile(
    r"Boolean value of Tensor with more than one value is ambiguous|"
    r"only one element tensors can be converted to Python scalars|"
    r"a Tensor with \d+ elements cannot be converted to Scalar|"
    r"truth value of an array with more than one element is ambiguous"
)


def _read_several(reading: Reading) -> Values:
    """A tensor of several values that is taken for one; `doubtful` where a package's own line does it."""
    raised = reading.last
    if raised is None or not SEVERAL.search(raised.message):
        return None
    package, caller = breaking_package(reading)
    says = f"{raised.type}: {raised.message.partition(chr(10))[0]}"[:LONGEST]
    return {"package": package, "caller": caller, "says": says, "doubtful": "1" if package else ""}


def _family(id: str, code: str, reader: Callable[[Reading], Values], remedy: str) -> Failure:
    return Failure(
        id,
        None,
        (Remedy(remedy), Remedy("upgrade_named", needs=("packages",))),
        code=code,
        reader=reader,
        last_resort=True,
        doubt=Doubt("operation_versions", "print_values"),
    )


FAILURES = (
    Failure(
        # The steps of torch.optim: they add gradients to what they kept of the earlier ones.
        "optimizer_mixed",
        said(
            r"Tensors of the same index must be on the same device and the same dtype",
            r"expected dtype \w+ for `(?:end|weight)` but got dtype",
            r"params, grads, exp_avgs, and exp_avg_sqs must have same dtype",
        ),
        (Remedy("optimizer_after_model"), Remedy("upgrade_transformers_accelerate")),
        code="D182",
    ),
    Failure(
        "inference_tensor",
        said(
            r"Inference tensors cannot be saved for backward|Inplace update to inference tensor outside InferenceMode|"
            r"Cannot set version_counter for inference tensor"
        ),
        (Remedy("out_of_inference"),),
        code="R51",
    ),
    Failure(
        "loader_on_card",
        said(
            r"cannot pin '[\w.]+' only dense CPU tensors can be pinned",
            # Windows cannot hand the card's memory to another process.
            r"StorageSharing\.cpp[^\n]*(?:not supported|error=(?:63|71|801)\b)",
            r"not supported[^\n]{0,80} at [^\n]{0,40}StorageSharing\.cpp",
            r"Expected a '\w+' device type for generator but found '\w+'",
        ),
        (Remedy("no_pinned_memory"), Remedy("default_device_back")),
        code="D192",
    ),
    Failure(
        "unscale_twice",
        said(r"unscale_\(\) (?:is being called|has already been called)"),
        (Remedy("clip_once"), Remedy("upgrade_transformers_accelerate")),
        code="D193",
    ),
    Failure(
        "split_and_whole",
        said(
            r"got mixed torch\.Tensor and DTensor",
            r"\bDTensor\b[^\n]{0,80}(?:not supported|does not support|expected)",
        ),
        (Remedy("one_split_way"), Remedy("upgrade_all")),
        code="D194",
    ),
    _family("operation_absent", "D183", _reader(ABSENT), "other_operation"),
    _family("operation_gradient", "D184", _reader(GRADIENT, ABSENT), "plain_gradient"),
    _family("operation_format", "D185", _reader(FORMAT, ABSENT, GRADIENT), "one_format"),
    _family("operation_device", "D186", _reader(DEVICE, ABSENT, GRADIENT, FORMAT), "one_device"),
    _family("operation_shape", "D187", _reader(SHAPE, ABSENT, GRADIENT, FORMAT, DEVICE), "print_shapes"),
    Failure(
        "several_values",
        said(SEVERAL.pattern),
        (Remedy("one_value"), Remedy("upgrade_all")),
        code="R49",
        reader=_read_several,
        strength=0.95,
        doubt=Doubt("inside_package", "own_frame", asked=True),
    ),
    Failure("operation_versions", None, (Remedy("upgrade_all"),), code="V63"),
)
