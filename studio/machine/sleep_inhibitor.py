"""What a computer does that pauses a run, kept off while one is on: sleep, and the click that freezes a console."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CONTINUOUS, SYSTEM_REQUIRED = 0x80000000, 0x00000001
"""ES_CONTINUOUS, ES_SYSTEM_REQUIRED of SetThreadExecutionState: no sleep, the display may go dark."""
INPUT_HANDLE = -10
QUICK_EDIT, EXTENDED_FLAGS = 0x0040, 0x0080
"""ENABLE_QUICK_EDIT_MODE, and ENABLE_EXTENDED_FLAGS, without which a change of the former is ignored."""


@contextmanager
def keep_awake(
    wanted: bool = True,
    *,
    system: str | None = None,
    kernel32: Any = None,
    find: Callable[[str], str | None] = shutil.which,
    start: Callable[..., Any] = subprocess.Popen,
) -> Iterator[None]:
    """Keep this computer from sleeping while the block runs, where it lets us; enter and leave on one thread.

    Ends with the process however that ends: Windows ties the wish to the thread, caffeinate watches our pid, and what
    systemd-inhibit runs reads a pipe that only we hold. `system`, `kernel32`, `find`, `start` are for tests.
    """
    system = system or platform.system()
    if not wanted:
        yield
        return
    if system == "Windows":
        kernel32 = kernel32 or _load_kernel32()
        kernel32.SetThreadExecutionState(CONTINUOUS | SYSTEM_REQUIRED)
        try:
            yield
        finally:
            kernel32.SetThreadExecutionState(CONTINUOUS)
        return
    helper = _start_helper(system, find, start)
    try:
        yield
    finally:
        if helper is not None:
            _end(helper)


@contextmanager
def without_quick_edit(*, system: str | None = None, kernel32: Any = None) -> Iterator[None]:
    """Switch off the console's QuickEdit mode while the block runs: one click would block the next line printed.

    Does nothing but on Windows, nor without a console. `system` and `kernel32` are for tests.
    """
    if (system or platform.system()) != "Windows":
        yield
        return
    import ctypes

    kernel32 = kernel32 or _load_kernel32()
    handle, mode = kernel32.GetStdHandle(INPUT_HANDLE), ctypes.c_ulong(0)
    known = bool(kernel32.GetConsoleMode(handle, ctypes.byref(mode)))
    before = mode.value
    if not known or not before & QUICK_EDIT:
        yield
        return
    kernel32.SetConsoleMode(handle, before & ~QUICK_EDIT | EXTENDED_FLAGS)
    try:
        yield
    finally:
        kernel32.SetConsoleMode(handle, before | EXTENDED_FLAGS)


def _start_helper(system: str, find: Callable[[str], str | None], start: Callable[..., Any]) -> Any:
    """Start the system's own program that holds sleep off; None where it has none."""
    program = find("caffeinate" if system == "Darwin" else "systemd-inhibit")
    if program is None:
        return None
    if system == "Darwin":
        words = [program, "-i", "-w", str(os.getpid())]
    else:
        words = [
            program,
            "--what=sleep:idle",
            "--who=Finetune Studio",
            "--why=A model is being trained",
            "cat",
        ]
    try:
        return start(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:
        return None  # not allowed, or damaged: training does not depend on it


def _end(helper: Any) -> None:
    helper.stdin.close()  # cat ends
    helper.terminate()
    try:
        helper.wait(2)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _load_kernel32() -> Any:
    import ctypes

    kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel32.GetStdHandle.restype = ctypes.c_void_p
    kernel32.GetConsoleMode.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    kernel32.SetConsoleMode.argtypes = (ctypes.c_void_p, ctypes.c_ulong)
    kernel32.SetThreadExecutionState.argtypes = (ctypes.c_uint,)
    return kernel32
