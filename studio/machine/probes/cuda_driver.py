"""Asks the CUDA driver itself, by ctypes; run in a child process, because a broken driver can end its process."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from studio.machine.probes.child import hand_over

MAJOR, MINOR = 75, 76  # of cuDeviceGetAttribute
NAME_BYTES = 256


def main() -> int:
    """Hand over `version`, such as 13000, and `gpus`: {name, vram_bytes, capability} of those that CUDA sees.

    Exit code 1, with the reason as the last line: no library (OSError), or CUDA's own error number.
    """
    cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    number = ctypes.c_int(0)
    check(cuda.cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
    hand_over(version=number.value)
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGetCount(ctypes.byref(number)), "cuDeviceGetCount")
    hand_over(gpus=[describe(cuda, index) for index in range(number.value)])
    return 0


def describe(cuda: Any, index: int) -> dict[str, Any]:
    """Return name, memory in bytes and compute capability of one device."""
    device, name, size = ctypes.c_int(0), ctypes.create_string_buffer(NAME_BYTES), ctypes.c_size_t(0)
    check(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    check(cuda.cuDeviceGetName(name, NAME_BYTES, device), "cuDeviceGetName")
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device), "cuDeviceTotalMem")
    pair = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int(0)
        check(cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device), "cuDeviceGetAttribute")
        pair.append(value.value)
    return {"name": name.value.decode("utf-8", "replace"), "vram_bytes": size.value, "capability": pair}


def check(code: int, call: str) -> None:
    """Raise SystemExit with CUDA's own error number when `code` is none of success."""
    if code:
        raise SystemExit(f"{call} failed with CUDA error {code}.")


if __name__ == "__main__":
    sys.exit(main())
