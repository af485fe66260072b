"""Replacing a file at once, also on a Windows machine whose virus scanner or indexer holds it for a moment."""

from __future__ import annotations

import os
import time
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
