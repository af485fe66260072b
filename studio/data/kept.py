"""What the cache of data sets holds, and what goes when it grows too large: the longest unused first."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

KEPT_BYTES = 32 * 2**30
RECENT_S = 24 * 3600
"""What was used since is kept whatever its size: a run may be reading it."""
MARK = "manifest.json"


def note_use(folder: Path) -> None:
    """Remember that a converted or tokenised data set was used now."""
    os.utime(folder / MARK)


def sweep(cache: Path, keep: Path) -> int:
    """Remove what was not used for the longest time until KEPT_BYTES are left; returns the bytes freed.

    `keep` stays, and what was used within RECENT_S.
    """
    entries = []
    for mark in cache.glob(f"*/{MARK}"):
        size = sum(path.stat().st_size for path in mark.parent.rglob("*") if path.is_file())
        entries.append((mark.stat().st_mtime, mark.parent, size))
    total, freed = sum(size for _, _, size in entries), 0
    for used_s, folder, size in sorted(entries):
        if total - freed <= KEPT_BYTES or time.time() - used_s < RECENT_S:
            break
        if folder != keep:
            (folder / MARK).unlink()  # first: what is half gone must not be taken for whole
            shutil.rmtree(folder, ignore_errors=True)
            freed += size
    return freed
