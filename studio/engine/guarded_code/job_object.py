"""Windows: a job object, which ends with all its processes when its last handle closes, as it does when we end."""

from __future__ import annotations

import ctypes
from typing import Any

KILL_ON_CLOSE, ACTIVE_PROCESSES, JOB_MEMORY = 0x2000, 0x8, 0x200
"""JOB_OBJECT_LIMIT_* of winnt.h."""
PROCESSES = 2
"""The python.exe of a venv starts the one that it was made from."""
EXTENDED_LIMITS = 9
"""JobObjectExtendedLimitInformation."""


class _Basic(ctypes.Structure):
    _fields_ = (
        ("process_time", ctypes.c_int64), ("job_time", ctypes.c_int64), ("flags", ctypes.c_uint32),
        ("least_set", ctypes.c_size_t), ("most_set", ctypes.c_size_t), ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t), ("priority", ctypes.c_uint32), ("scheduling", ctypes.c_uint32),
    )  # fmt: skip


class _Extended(ctypes.Structure):
    _fields_ = (
        ("basic", _Basic), ("counters", ctypes.c_uint64 * 6), ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t), ("peak_process", ctypes.c_size_t), ("peak_job", ctypes.c_size_t),
    )  # fmt: skip


class JobObject:
    """Holds one process and, where it may have any, those that it starts."""

    def __init__(self, process_handle: int, *, memory_bytes: int, processes: bool) -> None:
        """Raises OSError where Windows refuses."""
        self._kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)
        self._kernel.CreateJobObjectW.restype = ctypes.c_void_p
        self._job = ctypes.c_void_p(self._kernel.CreateJobObjectW(None, None))
        limits = _Extended(job_memory=memory_bytes)
        limits.basic.flags = KILL_ON_CLOSE | JOB_MEMORY | (0 if processes else ACTIVE_PROCESSES)
        limits.basic.processes = 0 if processes else PROCESSES
        told = self._kernel.SetInformationJobObject(
            self._job, EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
        )
        if not told or not self._kernel.AssignProcessToJobObject(self._job, ctypes.c_void_p(process_handle)):
            error = ctypes.WinError(ctypes.get_last_error())
            self.close()
            raise error

    def close(self) -> None:
        """End whatever is in it."""
        self._kernel.TerminateJobObject(self._job, 1)
        self._kernel.CloseHandle(self._job)
