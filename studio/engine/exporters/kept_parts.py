"""What an export that was stopped or killed had written and verified: the next one of the same goes on from there.

    staging/.parts/parts.json    {"key": what it is of, "files": {path below staging: [bytes, SHA-256]}}
    staging/.parts/...           parts that the finished folder does not have: the merged weights of a GGUF file

A part counts when every byte of it is what was recorded. What was being written when a process died is in no record,
and is written anew.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.json_file import read_json

FOLDER = ".parts"
RECORD = "parts.json"
READ_BYTES = 2**24


class KeptParts:
    """The record of one folder that is being written."""

    def __init__(self, staging: Path) -> None:
        """Read what is recorded in `staging`; nothing where that cannot be read."""
        self.staging, self.folder = staging, staging / FOLDER
        self.key = ""
        """What the folder is of; "" where nothing was recorded."""
        self._files: dict[str, tuple[int, str]] = {}
        try:
            found = read_json(self.folder / RECORD)
            self.key = str(found["key"])
            self._files = {str(path): (int(size), str(sha)) for path, (size, sha) in found["files"].items()}
        except (StudioError, KeyError, TypeError, ValueError, AttributeError):
            pass  # there is none, or it was cut: then nothing counts

    def begin(self, key: str) -> None:
        """Record what the folder is of. Raises OSError."""
        self.folder.mkdir(exist_ok=True)
        if key != self.key:
            self.key, self._files = key, {}
            self._write()

    def keep(self, paths: Iterable[Path]) -> None:
        """Record that these files are whole. Raises OSError."""
        self.folder.mkdir(exist_ok=True)
        for path in paths:
            self._files[path.relative_to(self.staging).as_posix()] = path.stat().st_size, hash_file(path)
        self._write()

    def has(self, name: str) -> bool:
        """Return whether the part `name`, a file or a folder of several, is there as it was recorded."""
        part = self.staging / name
        named = {path for path in self._files if path == name or path.startswith(f"{name}/")}
        return (
            bool(named) and self._are_whole(named) and (part.is_file() or _list(part, self.staging) == named)
        )

    def has_all(self, names: Iterable[str]) -> bool:
        """Return whether each of these files is there as it was recorded."""
        wanted = set(names)
        return wanted <= self._files.keys() and self._are_whole(wanted)

    def list_files(self) -> tuple[str, ...]:
        """Return the names of all files that were recorded, below the staging folder."""
        return tuple(sorted(self._files))

    def drop(self) -> None:
        """Let the record and the parts go that the finished folder does not have."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _are_whole(self, names: Iterable[str]) -> bool:
        for name in names:
            path, (size_bytes, sha) = self.staging / name, self._files[name]
            if not path.is_file() or path.stat().st_size != size_bytes or hash_file(path) != sha:
                return False
        return True

    def _write(self) -> None:
        files = {name: list(told) for name, told in self._files.items()}
        write_json(self.folder / RECORD, {"key": self.key, "files": files})


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _list(folder: Path, staging: Path) -> set[str]:
    return {path.relative_to(staging).as_posix() for path in folder.rglob("*") if path.is_file()}
