"""Replacing a file at once, also on a Windows machine whose virus scanner or indexer holds it; logs kept short."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

HELD = (5, 32, 33)
"""Windows' error codes for access denied, sharing violation and lock violation."""


def replace_file(source: Path, target: Path) -> None:
    """Rename `source` over `target`; tried again for some 2.5 s while Windows says that it is held. Raises OSError."""
    delay_s = 0.05
    while True:
        try:
            os.replace(source, target)
            return
        except OSError as error:
            if getattr(error, "winerror", None) not in HELD or delay_s > 1.6:
                raise
            time.sleep(delay_s)
            delay_s *= 2


def trim_log(path: Path, limit_bytes: int) -> Path:
    """Set a log of more than `limit_bytes` aside as `NAME.1`, in the place of the last one; return `path`.

    One that is held open, or cannot be renamed, goes on growing: no reason to fail.
    """
    with suppress(OSError):
        if path.stat().st_size > limit_bytes:
            replace_file(path, path.with_name(f"{path.name}.1"))
    return path
