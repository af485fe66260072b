"""Files that only the person's own account may read: keys, addresses with tokens, the state of sharing."""

from __future__ import annotations

import secrets
from pathlib import Path

from studio.core.atomic_files import write_file

KEY_BYTES = 32


def write_private(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one step; mode 0600 from its first byte on. Raises OSError."""
    write_file(path, content, private=True)


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
