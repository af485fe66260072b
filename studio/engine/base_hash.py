"""The hash of a base's weights, kept as long as its files are the ones that were hashed: 16 GB take 4 s and more."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from studio.models.file_hashes import hash_weights
from studio.planning.learned_limits import Remembered


def hash_base(folder: str | Path, remembered: Remembered | None) -> str:
    """Return hash_weights(folder), which `remembered` tells when it knows these files, and is told when not."""
    stamp = stamp_weights(folder)
    known = dict(remembered.read().bases) if remembered is not None else {}
    if stamp in known:
        return known[stamp]
    found = hash_weights(folder)
    # A file that was written meanwhile has another stamp, and is hashed again.
    if remembered is not None and stamp_weights(folder) == stamp:
        with suppress(OSError):  # on a full disk the next run hashes once more
            remembered.note_base(stamp, found)
    return found


def is_kept(folder: str | Path, remembered: Remembered) -> bool:
    """Return whether `remembered` knows the hash of these files."""
    return stamp_weights(folder) in dict(remembered.read().bases)


def stamp_weights(folder: str | Path) -> str:
    """Return the SHA-256 over places, sizes, times and inodes of a folder's safetensors: of each write another."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).resolve().glob("*.safetensors")):
        now = path.stat()
        facts = (path, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
        digest.update("\0".join(map(str, facts)).encode())
    return digest.hexdigest()
