"""Files that only the person's own account may read: keys, addresses with tokens, the state of sharing."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

from studio.core.files import replace_file

KEY_BYTES = 32


def write_private(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one step; mode 0600 from its first byte on. Raises OSError."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    staged.unlink(missing_ok=True)
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        replace_file(staged, path)
    except OSError:  # a full disk: nothing half-written stays
        staged.unlink(missing_ok=True)
        raise


def read_key(path: Path) -> bytes:
    """Return the random key kept at `path`, made there when it is absent or damaged. Raises OSError."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        key = secrets.token_bytes(KEY_BYTES)
        write_private(path, key)
    return key
