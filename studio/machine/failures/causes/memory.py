"""Failures of memory: on the graphics card, in the machine, in a container."""

from __future__ import annotations

from studio.core.facts import MachineFacts
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.probes import Values, found
from studio.machine.failures.remedies import (
    CLOSE_PROGRAMS,
    FOUR_BITS,
    RECOMPUTE,
    RESUME,
    SHORTER,
    SMALLER_BATCH,
    SMALLER_MODEL,
)

GIB = 2**30
COMMIT_FLOOR_BYTES = 8 * GIB
"""What Windows must still be able to promise: torch's CUDA libraries alone take some 4 GiB of it."""
SHM_FLOOR_BYTES = GIB


def _small_paging_file(machine: MachineFacts) -> Values | None:
    windows = machine.windows
    if windows is None or not windows.commit_limit_bytes or windows.commit_free_bytes >= COMMIT_FLOOR_BYTES:
        return None
    free, limit = windows.commit_free_bytes / GIB, windows.commit_limit_bytes / GIB
    return found(f"{free:.1f} of {limit:.1f} GiB of the commit limit are left")


def _small_shared_memory(machine: MachineFacts) -> Values | None:
    if not machine.container or not 0 < machine.shm_bytes < SHM_FLOOR_BYTES:
        return None
    return found(f"/dev/shm has {machine.shm_bytes / 2**20:.0f} MiB")


FAILURES = (
    Failure(
        "wsl_pinned_memory",
        said(
            r"pin_memory[\s\S]{0,400}CUDA error: out of memory",
            r"CUDA error: out of memory[\s\S]{0,200}pin_memory",
            r"cudaHostAlloc[\s\S]{0,80}out of memory",
        ),
        (Remedy("no_pinning"), CLOSE_PROGRAMS),
        code="L5",
    ),
    Failure(
        # More in one piece than any card has: too small a batch does not change its kind.
        "size_absurd",
        said(
            r"Tried to allocate (?P<size>(?:[2-9]\d\d|\d{4,})(?:\.\d+)? GiB|\d[\d.]* (?:TiB|PiB|EiB))",
            r"Invalid buffer size: (?P<size>(?:[2-9]\d\d|\d{4,})(?:\.\d+)? [GT]i?B)",
            r"Unable to allocate (?P<size>(?:[2-9]\d\d|\d{4,})(?:\.\d+)? GiB|\d[\d.]* (?:TiB|PiB|EiB))",
        ),
        (Remedy("whole_length"), Remedy("attention_in_parts"), Remedy("matching_versions")),
        code="M48",
    ),
    Failure(
        "gpu_memory",
        said(
            r"HIP error: out of memory",
            r"(?:PI|UR_RESULT|HSA_STATUS)_ERROR_OUT_OF_(?:RESOURCES|(?:DEVICE|HOST)_MEMORY)",
            r"Invalid buffer size: [\d.]+ [GT]i?B",
            r"CUDA out of memory",
            r"cudaMalloc[^\n]{0,160}\bout of memory",
            r"HIP out of memory",
            r"XPU out of memory",
            r"MPS backend out of memory",
            r"\[METAL\][^\n]*(?:Insufficient Memory|OutOfMemory)",
            r"CUDA error: out of memory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"cudaErrorMemoryAllocation|Cuda failure (?:\d+ )?'out of memory'",
            r"(?:unable|failed) to allocate (?:CUDA\d*|ROCm\d*|Vulkan\d*|Metal|compute|buffer for kv)\b"
            r"[^\n]{0,20}(?:buffers?|cache)",
            r"CUDNN_STATUS_ALLOC_FAILED",
        ),
        (SMALLER_BATCH, RECOMPUTE, SHORTER, FOUR_BITS, SMALLER_MODEL),
        code="M1",
        unless=said(
            r"(?:Tried to allocate|Invalid buffer size:) "
            r"(?:(?:[2-9]\d\d|\d{4,})(?:\.\d+)? GiB|\d[\d.]* (?:TiB|PiB|EiB))"
        ),
    ),
    Failure(
        # llama.cpp says so of whatever holds a layer, in the line above by name.
        "backend_buffer",
        said(r"unable to allocate backend buffer"),
        (Remedy("smaller_gguf"), Remedy("fewer_layers_on_card"), CLOSE_PROGRAMS),
        code="M51",
        strength=0.8,
    ),
    Failure(
        # Metal gives numbers of its own for what mostly is too little memory, or one command that took too long.
        "metal_failed",
        said(
            r"\[METAL\] Command buffer execution failed(?!: Insufficient Memory)",
            r"kIOGPUCommandBufferCallbackError(?!OutOfMemory)\w+",
        ),
        (SMALLER_BATCH, SHORTER, SMALLER_MODEL),
        code="M13",
        unless=said(r"Insufficient Memory|CallbackErrorOutOfMemory"),
    ),
    Failure(
        # No library says it; the watchdog sees shared memory grow and names it.
        "vram_spilled",
        None,
        (SMALLER_BATCH, RECOMPUTE, Remedy("no_sysmem_fallback"), RESUME),
        code="M2",
    ),
    Failure(
        # Raised by the engine's ladder (engine/oom_fallback.py), which has tried smaller batches and recomputing.
        "memory_exhausted",
        None,
        (SHORTER, FOUR_BITS, CLOSE_PROGRAMS, SMALLER_MODEL),
        code="M1b",
    ),
    Failure(
        "paging_file",
        said(
            r"(?:WinError|os error) 1455",
            r"paging file is too small|\u9875\u9762\u6587\u4ef6\u592a\u5c0f|Auslagerungsdatei ist zu klein",
        ),
        (Remedy("paging_file"), CLOSE_PROGRAMS, SMALLER_MODEL),
        code="M3",
        probe=_small_paging_file,
        subject="memory",
    ),
    Failure(
        "launch_timeout",
        said(
            r"launch timed out",
            r"CUDA_ERROR_LAUNCH_TIMEOUT",
            r"cudaErrorLaunchTimeout",
            r"TdrDelay",
            r"nvlddmkm.{0,40}\b(?:153|4101)\b",
        ),
        (Remedy("close_games"), RESUME),
        code="M4",
    ),
    Failure(
        "shared_memory",
        said(
            r"unable to open shared memory",
            r"unable to (?:mmap|allocate shared memory)",
            r"insufficient shared memory",
            r"out of shared memory",
            r"unable to write to file </torch_\d+",
            r"No space left on device[^\n]{0,80}/dev/shm|/dev/shm[^\n]{0,200}No space left on device",
            r"ncclSystemError[\s\S]{0,600}(?:/dev/shm|shared memory)|failed to extend /dev/shm",
            r"(?<=[^\n])Bus error",
            r"\bSIGBUS\b",
            r"(?:terminated|shutdown|killed|exited) (?:with|by) signal 7\b",
            r"multiprocessing\.SemLock[\s\S]{0,200}?No space left on device",
            # Alone it can as well be a file that was mapped and is cut, or lies on a disk that fails.
            r"^(?P<doubtful>Bus error)",
        ),
        (Remedy("shared_memory"),),
        code="M7",
        doubt=Doubt("disk_error", "df", asked=True),
        probe=_small_shared_memory,
        subject="memory",
    ),
    Failure(
        # The notebook does not see how its process ended.
        "kernel_died",
        said(
            r"[Kk]ernel (?:appears to have )?died\b|[Kk]ernel crashed while executing",
            r"\bKernelRestarter: restarting kernel|[Ss]ession crashed for an unknown reason|DeadKernelError",
        ),
        (CLOSE_PROGRAMS, SMALLER_BATCH, Remedy("run_as_script")),
        code="M45",
        strength=0.8,
        unless=said(r"all available RAM|ran out of memory"),
        doubt=Doubt("native_crash", "run_script"),
    ),
    Failure(
        "ram_killed",
        said(
            r"internal compiler error: Killed",
            r"\bSIGKILL\b",
            r"exit ?code:? ?(?:137|-9)(?!\d)",
            r"return code ?[=:]? ?-9(?!\d)",
            r"\(signal 9\)",
            r"^[ \t]*Killed[ \t]*$",
            r"line \d+:\s+\d+ Killed\b",
            r"Out of memory: Killed process",
            r"oom-kill",
            r"Killed signal terminated program",
            r"OutOfMemoryKiller|cgroup out of memory|OOMKilled",
            r"killed by signal: Killed",
            r"[Ss]ession crashed (?:after using all available RAM|because it ran out of memory)",
            r"oom_kill event|tasks? (?:has|have) been OOM Killed",
        ),
        (CLOSE_PROGRAMS, SMALLER_BATCH, SMALLER_MODEL, RESUME),
        code="M6",
    ),
    Failure(
        "ram",
        said(
            r"ArrayMemoryError",
            r"\bMemoryError\b",
            r"DefaultCPUAllocator",
            r"Cannot allocate memory",
            r"\[Errno 12\]",
            r"std::bad_alloc",
            r"ArrowMemoryError",
            r"requires more system memory \([^)\n]+\) than is available",
            r"cpu_buffer\w*: failed to allocate buffer of size|failed to allocate CPU buffer",
            r"memory allocation of \d+ bytes failed|WinError (?:8|14|1450)\b",
        ),
        (CLOSE_PROGRAMS, SMALLER_BATCH, SHORTER, SMALLER_MODEL),
        code="M10",
        unless=said(r"static TLS block"),
    ),
)
