"""Writes behind a bare number or name of Windows, Linux or CUDA what it stands for, in the words that causes know.

A program that starts others, and one in another language than Python, often shows nothing else: exit code 3221225477,
-11, CUDA_ERROR_NO_DEVICE. Sources: NTSTATUS values of Windows (ntstatus.h), signals of Linux (signal(7)), names and
sentences of CUDA's driver (cudaError_enum in cuda.h, cuGetErrorString).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

WINDOWS_ENDS: Mapping[int, str] = {
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction",
    0xC0000017: "not enough memory: MemoryError",
    0xC000007B: "not a valid Win32 application",
    0xC00000FD: "stack overflow",
    0xC0000135: "DLL not found",
    0xC0000139: "DLL entry point not found",
    0xC000013A: "Ctrl+C: KeyboardInterrupt",
    0xC0000142: "DLL initialization failed",
    0xC0000374: "heap corruption",
    0xC0000409: "stack buffer overrun",
    0xC06D007E: "DLL not found",
}
"""What a process of Windows ends with when Windows ended it; shown unsigned, signed or in hexadecimal."""
SIGNALS: Mapping[int, str] = {
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS: Bus error",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "ended from outside by SIGTERM",
}
"""What a process of Linux is ended by; shown as -N by Python and as 128 + N by a shell."""
SHELL: Mapping[int, str] = {126: "command is not a program that may run", 127: "command not found"}
"""What a shell says with its own number."""
CUDA: Mapping[str, str] = {
    "INVALID_VALUE": "invalid argument",
    "OUT_OF_MEMORY": "out of memory",
    "MEMORY_ALLOCATION": "out of memory",
    "NOT_INITIALIZED": "initialization error",
    "INITIALIZATION_ERROR": "initialization error",
    "STUB_LIBRARY": "CUDA driver is a stub library",
    "DEVICES_UNAVAILABLE": "CUDA-capable device(s) is/are busy or unavailable",
    "NO_DEVICE": "no CUDA-capable device is detected",
    "INVALID_DEVICE": "invalid device ordinal",
    "INVALID_IMAGE": "device kernel image is invalid",
    "INVALID_KERNEL_IMAGE": "device kernel image is invalid",
    "INVALID_SOURCE": "device kernel image is invalid",
    "INVALID_CONTEXT": "invalid device context",
    "CONTEXT_IS_DESTROYED": "context is destroyed",
    "DEINITIALIZED": "driver shutting down",
    "MAP_FAILED": "mapping of buffer object failed",
    "UNSUPPORTED_LIMIT": "limit is not supported on this architecture",
    "NOT_READY": "device not ready",
    "TIMEOUT": "wait operation timed out",
    "OPERATING_SYSTEM": "OS call failed or operation not supported on this OS",
    "PEER_ACCESS_ALREADY_ENABLED": "peer access is already enabled",
    "HOST_MEMORY_ALREADY_REGISTERED": "part or all of the requested memory range is already mapped",
    "STREAM_CAPTURE_UNSUPPORTED": "operation not permitted when stream is capturing",
    "STREAM_CAPTURE_INVALIDATED": "operation failed due to a previous error during capture",
    "EXTERNAL_DEVICE": "an async error has occurred in external entity outside of CUDA",
    "NOT_FOUND": "named symbol not found",
    "NO_BINARY_FOR_GPU": "no kernel image is available for execution on the device",
    "NO_KERNEL_IMAGE_FOR_DEVICE": "no kernel image is available for execution on the device",
    "ECC_UNCORRECTABLE": "uncorrectable ECC error encountered",
    "NVLINK_UNCORRECTABLE": "uncorrectable NVLink error detected during the execution",
    "HARDWARE_STACK_ERROR": "hardware stack error",
    "PEER_ACCESS_UNSUPPORTED": "peer access is not supported between these two devices",
    "TOO_MANY_PEERS": "peer mapping resources exhausted",
    "INVALID_PTX": "a PTX JIT compilation failed",
    "JIT_COMPILER_NOT_FOUND": "PTX JIT compiler library not found",
    "SYMBOL_NOT_FOUND": "named symbol not found",
    "INVALID_HANDLE": "invalid resource handle",
    "LAUNCH_OUT_OF_RESOURCES": "too many resources requested for launch",
    "LAUNCH_FAILURE": "unspecified launch failure",
    "LAUNCH_FAILED": "unspecified launch failure",
    "ILLEGAL_INSTRUCTION": "an illegal instruction was encountered",
    "MISALIGNED_ADDRESS": "misaligned address",
    "INVALID_PC": "invalid program counter",
    "NOT_PERMITTED": "operation not permitted",
    "NOT_SUPPORTED": "operation not supported",
    "SYSTEM_NOT_READY": "system not yet initialized",
    "COMPAT_NOT_SUPPORTED_ON_DEVICE": "forward compatibility was attempted on non supported HW",
    "MPS_CONNECTION_FAILED": "MPS client failed to connect to the MPS control daemon or the MPS server",
    "UNKNOWN": "unknown error",
}
"""The sentence of a name, without CUDA_ERROR_ or, in the runtime's spelling, cudaError."""
ENDED = r"(?:exit[ _]?(?:code|status)|exited with(?: code)?|return(?:ed)?[ _]?code|returncode|exit value)"
EXIT = re.compile(
    rf"(?:\b{ENDED}|\bstatus)[\s:=(]{{0,4}}(?P<number>-?\d{{1,10}}|0x[0-9a-f]{{8}})\b(?! ?\()(?!\.\d)",
    re.IGNORECASE,
)
RUST: Mapping[str, str] = {
    "NotFound": "No such file or directory",
    "PermissionDenied": "Permission denied",
    "StorageFull": "No space left on device",
    "ReadOnlyFilesystem": "Read-only file system",
    "QuotaExceeded": "Disk quota exceeded",
    "ConnectionRefused": "Connection refused",
    "ConnectionReset": "Connection reset by peer",
    "OutOfMemory": "Cannot allocate memory",
}
"""What Rust calls the system's errors in what it shows of them (std::io::ErrorKind)."""
RUST_ERROR = re.compile(r"\bOs \{ code: \d+, kind: (?P<kind>\w+)")
WINDOWS_ERROR = re.compile(r"\berror code: <(?P<number>\d{1,5})>")
"""As PyTorch's own files say a number of Windows."""
OLD_CUDA = re.compile(
    r"\bcuda runtime error \(\d{1,4}\) ?: (?P<words>[a-z][\w ,'-]{4,80}?)(?= at [./\\]|$)|"
    r"THCudaCheck FAIL [^\n]{1,200}? error=\d{1,4} : (?P<checked>[a-z][\w ,'-]{4,80})",
    re.IGNORECASE | re.MULTILINE,
)
"""How PyTorch before 1.5 said what it says as "CUDA error: ..." now."""
NAMED = re.compile(
    r"(?<!`)\b(?:CUDA_ERROR_(?P<driver>[A-Z_]{3,40})|cudaError(?P<runtime>[A-Z][A-Za-z]{2,40}))\b"
)
HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def spell_out(words: str) -> str:
    """Return `words` with what each bare number or name stands for in brackets behind it.

    What the text says in words already stays alone.
    """
    lower = words.lower()

    def explain(found: re.Match[str], meaning: str, lead: str = "") -> str:
        said = not meaning or (lead + meaning.partition(":")[0]).lower() in lower
        return found[0] if said else f"{found[0]} ({lead}{meaning})"

    words = OLD_CUDA.sub(
        lambda found: explain(found, found["words"] or found["checked"], "CUDA error: "), words
    )
    words = RUST_ERROR.sub(lambda found: explain(found, RUST.get(found["kind"], "")), words)
    words = WINDOWS_ERROR.sub(lambda found: explain(found, f"WinError {found['number']}"), words)
    words = EXIT.sub(lambda found: explain(found, _meaning_of(found["number"])), words)
    if "cuda_error_" not in lower and "cudaerror" not in lower:
        return words
    return NAMED.sub(
        lambda found: explain(
            found, CUDA.get(found["driver"] or HUMPS.sub("_", found["runtime"]).upper(), ""), "CUDA error: "
        ),
        words,
    )


def _meaning_of(number: str) -> str:
    """Return what the end of a process by `number` means; "" for a number that only says that it failed."""
    value = int(number, 0)
    if abs(value) > 1000:
        return WINDOWS_ENDS.get(value & 0xFFFFFFFF, "")
    return SIGNALS.get(-value, "") or SIGNALS.get(value - 128, "") or SHELL.get(value, "")
