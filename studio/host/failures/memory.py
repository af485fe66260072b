"""Failures of memory: on the graphics card, in the machine, in a container."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import (
    CLOSE_PROGRAMS,
    FOUR_BITS,
    RECOMPUTE,
    RESUME,
    SHORTER,
    SMALLER_BATCH,
    SMALLER_MODEL,
)

FAILURES = (
    Failure(
        "gpu_memory",
        said(
            r"CUDA out of memory",
            r"HIP out of memory",
            r"CUDA error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"cudaErrorMemoryAllocation",
        ),
        (SMALLER_BATCH, RECOMPUTE, SHORTER, FOUR_BITS, SMALLER_MODEL),
    ),
    Failure(
        "paging_file",
        said(r"(?:WinError|os error) 1455", r"paging file is too small"),
        (Remedy("paging_file"), CLOSE_PROGRAMS, SMALLER_MODEL),
    ),
    Failure(
        "shared_memory",
        said(
            r"unable to open shared memory",
            r"unable to (?:mmap|allocate shared memory)",
            r"Bus error",
            r"\bSIGBUS\b",
        ),
        (Remedy("shared_memory"),),
    ),
    Failure(
        "ram_killed",
        said(
            r"\bSIGKILL\b",
            r"exit code (?:137|-9)\b",
            r"^Killed$",
            r"Out of memory: Killed process",
            r"oom-kill",
            r"abruptly died during map operation",
        ),
        (CLOSE_PROGRAMS, SMALLER_BATCH, SMALLER_MODEL, RESUME),
    ),
    Failure(
        "ram",
        said(
            r"\bMemoryError\b",
            r"DefaultCPUAllocator",
            r"Cannot allocate memory",
            r"\[Errno 12\]",
            r"std::bad_alloc",
            r"ArrowMemoryError",
        ),
        (CLOSE_PROGRAMS, SMALLER_BATCH, SHORTER, SMALLER_MODEL),
    ),
)
