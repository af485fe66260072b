"""What the cache of data sets holds, and what goes when it grows too large: the longest unused first."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KEPT_BYTES = 32 * 2**30
RECENT_S = 24 * 3600
"""What was used since is kept whatever its size: a run may be reading it."""
MARK = "manifest.json"
WAIT_S = 0.5
GONE = ".part-gone"
"""Ends the name of a folder that is being removed; begins like those that are being made."""


def note_use(folder: Path) -> None:
    """Remember that a converted or tokenised data set was used now."""
    os.utime(folder / MARK)


@contextmanager
def hold(lock: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the file `lock`. While another process has it, `on_wait` is called every WAIT_S, and may raise."""
    from filelock import FileLock, Timeout

    held = FileLock(lock)
    while not held.is_locked:
        try:
            held.acquire(timeout=WAIT_S)
        except Timeout:
            on_wait()
    try:
        yield
    finally:
        held.release()


def sweep(cache: Path, keep: Path) -> int:
    """Remove what was not used for the longest time until KEPT_BYTES are left; returns the bytes freed.

    `keep` stays, and what was used within RECENT_S. So old parts of a process that was killed go in any case.
    """
    entries = []
    for left in cache.glob("*.part-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime >= RECENT_S:
                shutil.rmtree(left, ignore_errors=True)
    for mark in cache.glob(f"*/{MARK}"):
        with suppress(OSError):  # another process removes it meanwhile
            size = sum(path.stat().st_size for path in mark.parent.rglob("*") if path.is_file())
            entries.append((mark.stat().st_mtime, mark.parent, size))
    total, freed = sum(size for _, _, size in entries), 0
    for used_s, folder, size in sorted(entries):
        if total - freed <= KEPT_BYTES or time.time() - used_s < RECENT_S:
            break
        if folder != keep:
            gone = folder.with_name(f"{folder.name}{GONE}-{os.getpid()}")
            try:  # first: what is half gone must not be taken for whole
                os.replace(folder, gone)
            except OSError:
                continue  # Windows, where a run longer than RECENT_S has it mapped
            shutil.rmtree(gone, ignore_errors=True)
            freed += size
    return freed
