"""Which tensors of a GGUF file are written, with their checksums: after a kill the file goes on behind the last one.

One JSON line each, beside the file: first the SHA-256 of the file's head, which says all names, shapes and forms, then
that of each tensor's bytes with what pads them. A line that was cut, a head of another file and bytes that differ end
what counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from studio.core.json_file import parse_json

READ_BYTES = 2**24


def journal_of(path: Path) -> Path:
    """Return where the journal of the file at `path` lies."""
    return path.with_name(f"{path.name}.journal")


def count_whole(path: Path, head: bytes, sizes_bytes: Sequence[int]) -> int:
    """Return how many tensors of the file at `path`, from the first on, are as the journal says.

    sizes_bytes: of each tensor with what pads it. Raises OSError.
    """
    try:
        lines = journal_of(path).read_text(encoding="utf-8").split("\n")[:-1]
        file = path.open("rb")
    except FileNotFoundError:
        return 0
    count = 0
    with file:
        for line, size_bytes in zip(lines, (len(head), *sizes_bytes), strict=False):
            if _read_sum(line) != _sum_next(file, size_bytes):
                break
            count += 1
    if not count or _read_sum(lines[0]) != hashlib.sha256(head).hexdigest():
        return 0
    return count - 1


class TensorJournal:
    """The journal while the file is written: a line for each tensor once all its bytes were given to the system."""

    def __init__(self, path: Path, head: bytes, kept: int) -> None:
        """`kept`: tensors that count_whole() found; 0 begins anew. Raises OSError."""
        self._path = journal_of(path)
        lines = self._path.read_text(encoding="utf-8").split("\n")[: kept + 1] if kept else []
        lines = lines or [json.dumps({"sha256": hashlib.sha256(head).hexdigest()})]
        self._path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        self._file = self._path.open("a", encoding="utf-8", newline="\n")
        self._digest = hashlib.sha256()

    def add(self, data: bytes | memoryview) -> None:
        """Count further bytes of the present tensor."""
        self._digest.update(data)

    def end_tensor(self) -> None:
        """Say that the present tensor lies in the file as a whole. Raises OSError."""
        self._file.write(json.dumps({"sha256": self._digest.hexdigest()}) + "\n")
        self._file.flush()
        self._digest = hashlib.sha256()

    def close(self) -> None:
        """Close the journal, which stays beside the file until drop_journal()."""
        self._file.close()


def drop_journal(path: Path) -> None:
    """Delete the journal of a file that is whole."""
    journal_of(path).unlink(missing_ok=True)


def _read_sum(line: str) -> str:
    try:
        return str(parse_json(line)["sha256"])
    except (ValueError, KeyError, TypeError):
        return ""


def _sum_next(file: BinaryIO, size_bytes: int) -> str:
    digest, left = hashlib.sha256(), size_bytes
    while left and (block := file.read(min(left, READ_BYTES))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest() if not left else "cut"
