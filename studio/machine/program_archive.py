"""The program as one archive, for a computer inside this one: no environments, no caches, a version of its content."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

LIST = ".studio-files"
"""In the archive: the name of every file, so that a later copy can take away what is gone."""


def pack_program(root: Path) -> tuple[bytes, str]:
    """Return this program as a tar.gz without environments and caches, and the version that its content makes."""
    files = list_program(root)
    digest = hashlib.sha256()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as archive:

        def add(name: str, content: bytes) -> None:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(entry, io.BytesIO(content))

        for name in files:
            content = (root / name).read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            add(name, content)
        add(LIST, "".join(f"{name}\n" for name in files).encode())
    return packed.getvalue(), digest.hexdigest()[:16]


def list_program(root: Path) -> list[str]:
    """Return the program's files below `root`, with slashes: nothing in folders of tools, whose names have a dot."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".") and each != "__pycache__"]
        found += [
            Path(folder, name).relative_to(root).as_posix()
            for name in names
            if not name.startswith(".") and not name.endswith((".pyc", ".log"))
        ]
    return sorted(found)
