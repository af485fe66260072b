"""What each process that fetches for the studio does: it answers by lines of JSON and ends when its parent is gone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def say(message: Mapping[str, Any]) -> None:
    """Write `message` as one line of the real standard output, whatever libraries are given in its place."""
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def end_with_parent() -> None:
    """Start a thread that ends this process, with code 1, when its standard input closes."""
    threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def require_space(folder: Path, needed_bytes: int, spare_bytes: int = 0) -> None:
    """Raise OSError (no space left) when the disk of `folder` cannot take so much and keep `spare_bytes` free."""
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes + spare_bytes > free_bytes:
        raise OSError(errno.ENOSPC, f"{needed_bytes / 1e9:.1f} GB > {free_bytes / 1e9:.1f} GB")


def _wait() -> None:
    # Past sys.stdin, whose lock a waiting thread would hold: the interpreter aborts at its end when it cannot have it.
    while os.read(0, 1024):
        continue
    os._exit(1)
