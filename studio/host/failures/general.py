"""Failures that say what broke and not why: looked for last."""

from __future__ import annotations

from studio.core.facts import MachineFacts
from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.probing import Values, found
from studio.host.failures.remedies import (
    CLOSE_PROGRAMS,
    INSTALL,
    PYTORCH_KERNELS,
    REBUILD,
    RESTART,
    RESUME,
    UPDATE_DRIVER,
)

REQUIRED = ("transformers", "peft", "datasets")
"""What a run needs beside torch, which has an entry of its own."""


def _lacking(machine: MachineFacts) -> Values | None:
    names = ", ".join(name for name in REQUIRED if name not in machine.packages)
    return {"module": names, **found(f"not installed: {names}")} if names else None


FAILURES = (
    Failure(
        "kernel_compile",
        said(
            # Only says that the assembler returned -1; Linux words the same end differently.
            r"ptxas.{0,12}failed with error code",
            r"ptxas(?:\.exe)?'[^\n]*returned non-zero exit status",
            r"Internal Triton PTX codegen error",
            r"\bPTXASError\b",
            r"triton\.compiler\.errors\.\w+",
            r"\bCompilationError: at \d+:\d+",
            r"\bAutotunerError\b",
            r"Failed to compile\. cc_cmd",
            r"PassManager::run failed",
        ),
        (PYTORCH_KERNELS, UPDATE_DRIVER, INSTALL),
        code="S2",
    ),
    Failure(
        "package_mismatch",
        said(
            r"\bImportError:? cannot import name",
            r"cannot import name '\w+' from '(?:transformers|torch|trl|peft|accelerate|datasets|huggingface_hub)",
            r"is required for a normal functioning of this module",
        ),
        (REBUILD,),
        code="P14",
    ),
    Failure(
        "package_missing",
        said(r"No module named '?(?P<module>[\w.]+)"),
        (INSTALL, REBUILD),
        code="P15",
        probe=_lacking,
        severity="blocked",
    ),
    Failure(
        "library_load",
        said(r"DLL load failed while importing \w+", r"\bWinError (?:126|1114)\b"),
        (Remedy("visual_runtime"), REBUILD),
        code="C17",
    ),
    Failure(
        "cublas_start",
        said(r"CUBLAS_STATUS_NOT_INITIALIZED", r"CUSOLVER_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)"),
        (CLOSE_PROGRAMS, RESTART),
        code="C16",
    ),
    Failure(
        "device_assert",
        said(r"device-side assert", r"CUDA_ERROR_ASSERT"),
        (Remedy("matching_tokenizer"), RESTART, RESUME),
        code="C14",
    ),
    Failure(
        "illegal_access",
        said(
            r"illegal memory access",
            r"misaligned address",
            r"unspecified launch failure",
            r"illegal instruction was encountered",
            r"CUDA_ERROR_ILLEGAL_ADDRESS",
            r"CUBLAS_STATUS_EXECUTION_FAILED",
            r"CUDNN_STATUS_EXECUTION_FAILED",
        ),
        (PYTORCH_KERNELS, RESTART, UPDATE_DRIVER),
        code="C15",
    ),
    Failure(
        "nccl",
        said(
            r"NCCL (?:error|WARN).{0,80}(?:unhandled|timeout|failed|invalid)",
            r"Watchdog caught collective operation timeout",
            r"\bncclUnhandledCudaError\b",
            r"\bncclSystemError\b",
            r"\bncclInternalError\b",
        ),
        (Remedy("no_peer_access"), Remedy("one_gpu"), RESUME),
        code="D7",
    ),
    Failure(
        "loader_worker",
        said(r"DataLoader worker \(pids?(?:\(s\))? [\d, ]+\)"),
        (RESTART, RESUME),
        code="D8",
    ),
    Failure(
        # Any other reason for which torch cannot be imported: a look at the machine names it.
        "torch_fails",
        said(r"PyTorch cannot be imported"),
        (REBUILD,),
        code="C12",
        severity="blocked",
    ),
    Failure(
        "native_crash",
        said(
            r"\bSIGSEGV\b",
            r"Segmentation fault",
            r"0xC0000005",
            r"\b3221225477\b",
            r"access violation",
            r"\bSIGABRT\b",
            r"Fatal Python error",
            r"0xC0000409",
            r"\b3221226505\b",
        ),
        (PYTORCH_KERNELS, RESUME, Remedy("doctor")),
        code="D10",
    ),
)
