"""The child's end of the line to its supervisor: standard input carries `stop`, and its end means that the parent died.

In the child, once, before the work starts:  lifeline.watch_parent(on_stop)
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable

FAULT_LOG_VARIABLE = "FINETUNE_STUDIO_FAULT_LOG"
GRACE_S = 1.0
"""How long an orphan may still write: it is gone within 2 s of its parent's death."""


def watch_parent(on_stop: Callable[[], None], descriptor: int = 0) -> threading.Thread:
    """Start a daemon thread that reads the file `descriptor` (0: standard input) and return it.

    The line `stop` calls `on_stop()`, which must only set a flag: the step ends, a checkpoint is written, the process
    ends. At the end of the stream `on_stop()` is called too, and the process ends GRACE_S later whatever it does.
    """
    keep_fault_log()
    thread = threading.Thread(target=_read, args=(descriptor, on_stop), name="lifeline", daemon=True)
    thread.start()
    return thread


def keep_fault_log() -> None:
    """Let a crash in native code write its Python stacks to the file that the supervisor named, if it named one."""
    path = os.environ.get(FAULT_LOG_VARIABLE)
    if path:
        # faulthandler keeps the descriptor: closing the file would lose the stacks.
        faulthandler.enable(file=open(path, "a", encoding="utf-8"), all_threads=True)  # noqa: SIM115


def _read(descriptor: int, on_stop: Callable[[], None]) -> None:
    # Not through sys.stdin: an interpreter that ends while a thread waits in its buffer aborts (SIGABRT).
    rest = b""
    while data := os.read(descriptor, 4096):
        *lines, rest = (rest + data).split(b"\n")
        if b"stop" in (line.strip() for line in lines):
            on_stop()
    deadline_s = time.monotonic() + GRACE_S
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        while True:
            # A thread of Python's stands still while the interpreter ends, which takes seconds; this clock runs on. It
            # is set again and again because the engine's watch sets the same clock until the run ends.
            left_s = max(0.01, deadline_s - time.monotonic())
            faulthandler.dump_traceback_later(left_s, exit=True, file=nowhere)
            on_stop()
            time.sleep(0.1)
