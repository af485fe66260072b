"""Writes a GGUF file, version 3: what header.py reads. Its keys and tensors are told first, the data comes after."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.models.gguf.block_types import BlockType
from studio.models.gguf.header import ARRAY, MAGIC, STRING
from studio.models.gguf.tensor_journal import TensorJournal, count_whole

ALIGNMENT_BYTES = 32
VERSION = 3
UINT32, INT32, FLOAT32, BOOL = 4, 5, 6, 7


class GgufWriter:
    """`with GgufWriter(path, metadata, tensors) as file: file.write(data)`, once for each tensor in their order.

    With a journal, a file that a dead process left is gone on with behind its last whole tensor, where it was to be
    the same file: `kept` says how many tensors are there already.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Sequence[tuple[str, tuple[int, ...], BlockType]],
        *,
        goes_on: bool = False,
    ) -> None:
        """`tensors`: name, shape as PyTorch has it, and form of each; `goes_on`: with a journal. Raises OSError."""
        self._sizes_bytes = [math.prod(shape) // form.values * form.size_bytes for _, shape, form in tensors]
        head = _pack_head(metadata, tensors, self._sizes_bytes)
        padded_bytes = [_align(size_bytes) for size_bytes in self._sizes_bytes]
        self.kept = self._next = count_whole(path, head, padded_bytes) if goes_on else 0
        self._file = path.open("r+b" if self.kept else "wb")
        if self.kept:
            self._file.truncate(len(head) + sum(padded_bytes[: self.kept]))
            self._file.seek(0, 2)
        else:
            self._file.write(head)
        self._journal = TensorJournal(path, head, self.kept) if goes_on else None

    def __enter__(self) -> GgufWriter:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; its journal stays beside it, see tensor_journal.drop_journal()."""
        if self._journal is not None:
            self._journal.close()
        self._file.close()

    @property
    def size_bytes(self) -> int:
        """Bytes of the file as far as it is written."""
        return self._file.tell()

    def write(self, data: bytes | memoryview) -> None:
        """Write a part of the next tensor; the tensors' parts come in their order. Raises ValueError for too much."""
        size_bytes = memoryview(data).nbytes
        left_bytes = self._sizes_bytes[self._next] - size_bytes
        if left_bytes < 0:
            raise ValueError("more data than the tensor has")
        self._put(data)
        self._sizes_bytes[self._next] = left_bytes
        if not left_bytes:
            self._next += 1
            self._put(b"\0" * (-self._file.tell() % ALIGNMENT_BYTES))
            if self._journal is not None:
                self._file.flush()  # to the system, which keeps it when this process is killed
                self._journal.end_tensor()

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        if self._journal is not None:
            self._journal.add(data)


def measure_file(
    metadata: Mapping[str, Any], tensors: Sequence[tuple[str, tuple[int, ...], BlockType]]
) -> int:
    """Return the bytes of the file."""
    sizes_bytes = [math.prod(shape) // form.values * form.size_bytes for _, shape, form in tensors]
    return len(_pack_head(metadata, tensors, sizes_bytes)) + sum(map(_align, sizes_bytes))


def _align(size_bytes: int) -> int:
    return size_bytes + -size_bytes % ALIGNMENT_BYTES


def _pack_head(
    metadata: Mapping[str, Any],
    tensors: Sequence[tuple[str, tuple[int, ...], BlockType]],
    sizes_bytes: Sequence[int],
) -> bytes:
    head = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    head += [_pack_string(name) + _pack_value(value) for name, value in metadata.items()]
    start_bytes = 0
    for (name, shape, form), size_bytes in zip(tensors, sizes_bytes, strict=True):
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_pack_string(name) + dimensions + struct.pack("<IQ", form.number, start_bytes))
        start_bytes += _align(size_bytes)
    whole = b"".join(head)
    return whole + b"\0" * (-len(whole) % ALIGNMENT_BYTES)


def _pack_string(words: str) -> bytes:
    content = words.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(content)) + content


def _pack_value(value: Any) -> bytes:
    kind = _find_kind(value)
    if kind != ARRAY:
        return struct.pack("<I", kind) + _pack_one(kind, value)
    inner = _find_kind(value[0]) if value else INT32
    inner = INT32 if inner == UINT32 else inner
    head = struct.pack("<IIQ", ARRAY, inner, len(value))
    return head + b"".join(_pack_one(inner, one) for one in value)


def _find_kind(value: Any) -> int:
    kinds = ((bool, BOOL), (int, UINT32), (float, FLOAT32), (str, STRING))
    return next((kind for known, kind in kinds if isinstance(value, known)), ARRAY)


def _pack_one(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _pack_string(value)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)
