"""A lock on an open file that the system lets go of however its process ends.

Standard library only, imports nothing of studio, parses and runs on Python 3.8: two starts of the studio lock each
other out before any package is there.
"""

from __future__ import annotations

import contextlib
import os
import time


@contextlib.contextmanager
def hold(path, tell_waiting):
    """Hold the lock file `path`; while another process has it, call `tell_waiting` once and wait for it."""
    with path.open("a+b") as file:
        waiting = False
        while not try_lock(file):
            if not waiting:
                tell_waiting()
            waiting = True
            time.sleep(0.5)
        yield


def try_lock(file):
    """Lock an open file, until it is closed; return whether no other process has it."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
