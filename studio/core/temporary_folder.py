"""A temporary folder that nobody finds for ever: whoever opens the next one clears what killed processes left.

A process that is killed clears nothing, and such folders hold a person's own rows and answers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType

from studio.core.lock_file import try_lock

PREFIX = "finetune-studio-"
LOCK_FILE = "lock"
"""Held as long as the process lives that made the folder: the system lets go of it however the process ends."""
YOUNG_S = 60.0
"""A folder this young may not be locked yet."""


class TemporaryFolder:
    """An empty folder at `path`, of this process alone, until `close` or until it is not referred to any more."""

    def __init__(self, purpose: str) -> None:
        """`purpose`: a word for the folder's name. Raises OSError where the system's temporary folder takes nothing."""
        clear_abandoned()
        # ignore_cleanup_errors: on Windows what another process has open stays, and is cleared by a later one.
        self._folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{purpose}-", ignore_cleanup_errors=True)
        self._lock = (Path(self._folder.name) / LOCK_FILE).open("a+b")
        try_lock(self._lock)
        self.path = Path(self._folder.name) / "files"
        self.path.mkdir()

    def close(self) -> None:
        """Remove the folder."""
        self._lock.close()
        self._folder.cleanup()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def clear_abandoned() -> None:
    """Remove the folders of this account whose process has ended without removing them."""
    try:
        found = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return  # what is wrong with it is said by whoever asks for a new folder
    for entry in found:
        if entry.name.startswith(PREFIX) and _is_abandoned(entry):
            shutil.rmtree(entry.path, ignore_errors=True)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    try:
        stat = entry.stat(follow_symlinks=False)
        lock = Path(entry.path) / LOCK_FILE
        if (
            not entry.is_dir(follow_symlinks=False)
            or time.time() - stat.st_mtime < YOUNG_S
            or not lock.is_file()
        ):
            return False
        if os.name != "nt" and stat.st_uid != os.getuid():
            return False
        with lock.open("a+b") as file:
            return try_lock(file)
    except OSError:
        return False
