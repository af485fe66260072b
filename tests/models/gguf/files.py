"""GGUF files for tests: headers as the format's paper has them, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def pack_string(words: str) -> bytes:
    """Return a string as a GGUF file has it."""
    content = words.encode()
    return struct.pack("<Q", len(content)) + content


def pack_value(value: Any) -> bytes:
    """Return a metadata value with its type."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + pack_string(value)
    inner = 8 if isinstance(value[0], str) else 6 if isinstance(value[0], float) else 5
    items = b"".join(
        pack_string(one) if inner == 8 else struct.pack("<f" if inner == 6 else "<i", one) for one in value
    )
    return struct.pack("<IIQ", 9, inner, len(value)) + items


def write_file(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[tuple[str, tuple[int, ...], int, bytes]] = (),
    version: int = 3,
) -> Path:
    """Write a file of `tensors` (name, shape as PyTorch has it, type, data)."""
    keys = b"".join(pack_string(name) + pack_value(value) for name, value in metadata.items())
    table, data = b"", b""
    for name, shape, kind, content in tensors:
        data += b"\0" * (-len(data) % 32)
        table += pack_string(name) + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, len(data))
        data += content
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + keys + table
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path
