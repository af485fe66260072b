"""Replacing a file at once, also on a Windows machine whose virus scanner or indexer holds it; logs kept short."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

LOG_LIMIT_BYTES = 5_000_000
"""A studio may stay up for weeks, and a program may print every request."""
HELD = (5, 32, 33)
"""Windows' error codes for access denied, sharing violation and lock violation."""
SPARE_DISK_BYTES = 2**30
FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
"""Numbers of a full disk."""


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


def cut_log(log: BinaryIO, path: Path, limit_bytes: int) -> None:
    """Empty the log at `path`, which `log` and other processes are writing, when it is longer than `limit_bytes`.

    What it held is kept as `NAME.1`. A disk that refuses leaves it growing.
    """
    with suppress(OSError):
        if os.fstat(log.fileno()).st_size > limit_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            log.truncate(0)
            log.seek(
                0
            )  # Windows' writers share the place of this one; elsewhere they write at the end anyhow


def write_file(path: Path, content: bytes, *, private: bool = False, lasting: bool = False) -> None:
    """Replace the file at `path` in one step; when that fails nothing half-written stays. Raises OSError.

    `private`: only this user may read it, from its first byte on. `lasting`: it is on the disk before it takes its
    place, so that not even a power cut leaves less than the old or the new file.
    """
    # Threads write the same file too: the page's, the engine's.
    staged = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    staged.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(staged, flags, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        replace_file(staged, path)
    except OSError:  # a full disk
        staged.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any, *, private: bool = False, lasting: bool = False) -> None:
    """Replace the file at `path` by `data` as JSON, as write_file does. Raises OSError, ValueError for NaN."""
    words = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    # Half an emoji, cut by a page, becomes a question mark: better than to lose all else.
    write_file(path, words.encode("utf-8", "replace"), private=private, lasting=lasting)


def add_spare(size_bytes: int) -> int:
    """Return the room that a disk should have for `size_bytes`: half as much again, at most 1 GiB."""
    return size_bytes + min(size_bytes // 2, SPARE_DISK_BYTES)
